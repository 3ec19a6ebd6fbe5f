"""The paper's greedy attack on filters stays under its bound."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from fedsim.errors import InputError, SettingError
from fedsim.linkage import get_metric
from fedsim.privacy.bounds import success_bound
from fedsim_audit.attacks.similarity_attacks import Codebook
from fedsim_lab.greedy_attack import greedy_attack
from linked_filters import every_pair, filters, most_hits


@pytest.mark.parametrize(("n_bits", "sigma"), list(product((64, 256, 1024, 4096), (0.05, 0.4, 4))))
def test_the_greedy_attack_stays_under_tau(n_bits, sigma):
    view, codes, _ = every_pair(n_bits, sigma)
    found = greedy_attack(view, codes, rng=np.random.default_rng(9))
    tau = success_bound(sigma, view.scale.deviation)
    assert found.score.value * found.targets <= most_hits(tau, found.targets)
    assert found.figures["bound tau"] == tau


def test_more_links_make_the_greedy_attack_worse():
    view, codes, _ = every_pair(256, 0.1)
    one, three = (greedy_attack(view, codes, rng=np.random.default_rng(0), queries=q) for q in (1, 3))
    assert three.figures["bound tau"] == pytest.approx(one.figures["bound tau"] ** 3)
    assert three.figures["share of distances guessed"] < one.figures["share of distances guessed"]


def test_equal_chance_gives_an_equal_finding():
    view, codes, _ = every_pair(64, 0.1)
    first, second = (greedy_attack(view, codes, rng=np.random.default_rng(5)) for _ in range(2))
    assert first == second


def test_inputs_that_do_not_fit_are_refused():
    view, codes, _ = every_pair(64, 0.1)
    with pytest.raises(SettingError) as too_many:
        greedy_attack(view, codes, rng=np.random.default_rng(0), queries=81)
    assert too_many.value.code == "too-many-queries"
    with pytest.raises(InputError) as mismatch:
        greedy_attack(
            view,
            Codebook.of(get_metric("hamming"), filters(80, 64, 0), filters(2, 64, 1)),
            rng=np.random.default_rng(0),
        )
    assert (mismatch.value.code, mismatch.value.limit) == ("codebook-mismatch", 2)
