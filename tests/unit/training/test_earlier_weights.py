"""A network that takes over the weights of one with fewer lists predicts as that one, until it is trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.errors import FileError
from fedsim.splitnn.methods import EarlierWeights
from fedsim.training import modern_preset, paper_preset, train
from training_fixtures import SPLIT, small_primary, small_secondaries


@pytest.mark.parametrize("preset", [paper_preset, modern_preset])
def test_a_new_list_changes_no_prediction_before_training(preset):
    config = replace(preset(epochs=1), members=2, device="cpu")
    known, new = small_secondaries(2)
    before = train(small_primary(), [known], SPLIT, config).model
    after = train(small_primary(), [new, known], SPLIT, config).model
    EarlierWeights(before.parts()["primary"], (False, True)).fill(after.primary.model.network)
    after.groups[1][0].model.fill(before.parts()[known.name])
    features, lists = small_primary().features, [known.neighbours]
    expected = before.primary.predict(before.records(features, lists), SPLIT.test)[0]
    found = after.primary.predict(after.records(features, [new.neighbours, *lists]), SPLIT.test)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    with raises(FileError, "weights-mismatch"):
        EarlierWeights(before.parts()["primary"], (True, True)).fill(after.primary.model.network)
