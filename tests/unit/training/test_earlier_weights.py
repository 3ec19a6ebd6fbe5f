"""A network that takes over the weights of one with fewer lists predicts as that one, until it is trained."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.errors import FileError
from fedsim.splitnn.methods import EarlierWeights
from fedsim.splitnn.secondary_model import LocalSecondary
from fedsim.training import Hook, modern_preset, paper_preset, train, train_with
from fedsim.training.loop import start_local_secondaries, training_settings
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


class Experienced(LocalSecondary):
    """A secondary that starts with earlier weights, as in a job with ``start_from``."""

    earlier = None

    def begin(self, total_steps):
        super().begin(total_steps)
        self.model.fill(self.earlier)


class Killed(Hook):
    def epoch_ended(self, epoch):
        raise KeyboardInterrupt


def test_the_start_is_used_if_no_epoch_is_better_also_after_a_kill(tmp_path):
    config = replace(modern_preset(epochs=3), members=2, device="cpu")
    primary, (known, _) = small_primary(), small_secondaries(2)
    before = train(primary, [known], SPLIT, config)
    worse = replace(config, epochs=2, optimiser=replace(config.optimiser, rate=1.0))
    Experienced.earlier = before.parts[known.name]
    joined = replace(primary, earlier=EarlierWeights(before.parts["primary"], (True,)))
    found = []
    for folder, hooks in ((None, ()), (tmp_path, (Killed(),)), (tmp_path, ())):
        (entry,) = start_local_secondaries([known], training_settings(worse, SPLIT, folder))
        parts = {each.name: getattr(entry.holders[0], each.name) for each in fields(LocalSecondary) if each.init}
        lists = [replace(entry, holders=(Experienced(**parts),))]
        with suppress(KeyboardInterrupt):
            found.append(train_with(joined, lists, SPLIT, worse, folder=folder, hooks=hooks))
    assert [result.best.number for result in found] == [0, 0]
    for result in found:
        assert result.metrics["test"] == pytest.approx(before.metrics["test"])
        assert not any(epoch.best for epoch in result.history)
