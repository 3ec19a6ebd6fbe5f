"""Laws of the questions a batch asks, and of scaled labels."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsim.splitnn.gates.order import BySimilarity, Neighbours, Shuffled, most_similar
from fedsim.training.exchange import BATCHES_AHEAD, PartnerList
from fedsim.training.labels import MinMaxLabel, StandardLabel

N_ROWS = 12
partners = arrays(np.int64, st.tuples(st.integers(1, 30), st.integers(1, 5)), elements=st.integers(-1, N_ROWS - 1))
labels = arrays(np.float64, st.integers(1, 30), elements=st.floats(-1e6, 1e6))


class Holder:
    n_records = N_ROWS


def listed(partner):
    return PartnerList.of(Neighbours(partner, np.zeros(partner.shape)), (Holder(),), torch.device("cpu"))


@settings(deadline=None)
@given(partners, st.integers(1, 7))
def test_every_pair_finds_its_own_row_among_the_distinct_ones(partner, size):
    batches = [np.arange(len(partner))[first : first + size] for first in range(0, len(partner), size)]
    for rows, question in zip(batches, listed(partner).questions(batches), strict=True):
        asked = [*question.rows.tolist(), -1]
        assert asked[:-1] == sorted({row for row in partner[rows].ravel().tolist() if row >= 0})
        assert [[asked[place] for place in places] for places in question.position.tolist()] == partner[rows].tolist()


def test_questions_go_on_beyond_the_first_group():
    partner = np.arange(BATCHES_AHEAD + 3)[:, None] % N_ROWS
    batches = [np.array([row]) for row in range(len(partner))]
    asked = [question.rows.item() for question in listed(partner).questions(batches)]
    assert asked == partner[:, 0].tolist()


@settings(deadline=None)
@given(arrays(np.float64, (5, 4), elements=st.floats(-3, 3)))
def test_the_sort_gate_sorts_and_keeps_pairs_together(similarity):
    neighbours = Neighbours(np.arange(20).reshape(5, 4), similarity)
    for order in (BySimilarity(), Shuffled()):
        arranged = order.arrange(neighbours, np.random.default_rng(0))
        assert (similarity.ravel()[arranged.partner] == arranged.similarity).all()
        assert (np.sort(arranged.partner, axis=1) == neighbours.partner).all()
    assert (np.diff(BySimilarity().arrange(neighbours, np.random.default_rng(0)).similarity, axis=1) >= 0).all()
    assert (most_similar(neighbours).similarity[:, 0] == similarity.max(axis=1)).all()


@given(labels)
def test_labels_come_back_from_their_scale(values):
    spread = np.abs(values).max()
    for scale in (MinMaxLabel(), StandardLabel()):
        target = scale.fit(values)
        back = target.outwards(target.inwards(values).astype(np.float64)[:, None])
        np.testing.assert_allclose(back, values, atol=1e-6 * spread + 1e-9, rtol=0)
