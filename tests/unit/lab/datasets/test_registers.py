"""Registers of firms whose names were not used for tuning."""

from __future__ import annotations

import numpy as np

from fedsim_lab.datasets.registers import LANGUAGES, OTHER_LANGUAGES, generate_registers


def test_registers_of_other_languages_share_no_names_and_misspell_most_of_them() -> None:
    drawn = [
        generate_registers(np.random.default_rng(3), ours=300, theirs=400, languages=languages)
        for languages in (LANGUAGES, OTHER_LANGUAGES)
    ]
    assert not set(drawn[0].ours) & set(drawn[1].ours)
    known = np.flatnonzero(drawn[1].truth >= 0)
    equal = np.mean([drawn[1].ours[row] == drawn[1].theirs[drawn[1].truth[row]] for row in known])
    assert len(known) == 210
    assert 0.03 < equal < 0.3
