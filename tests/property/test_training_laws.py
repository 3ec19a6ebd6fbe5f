"""Laws of the questions a batch asks, of scaled labels, and of runs that are killed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from fedsim.splitnn.gates import BySimilarity, keep_most_similar
from fedsim.training.data import MinMaxLabel, StandardLabel
from fedsim.training.primary_steps import PREFETCHED_BATCHES, PartnerList
from fedsim.types import Links
from fedsim_lab.ablations import Shuffled
from resume_fixtures import KillAt, last_tensors, run, same_bits, survive, without_time
from training_fixtures import encoded_config

N_ROWS = 12
EPOCHS, STEPS = 3, 3
partners = arrays(np.int64, st.tuples(st.integers(1, 30), st.integers(1, 5)), elements=st.integers(-1, N_ROWS - 1))
labels = arrays(np.float64, st.integers(1, 30), elements=st.floats(-1e6, 1e6))


class Holder:
    n_records = N_ROWS


def listed(partner):
    return PartnerList.of(Links(partner, np.zeros(partner.shape)), (Holder(),), torch.device("cpu"))


@settings(deadline=None)
@given(partners, st.integers(1, 7))
def test_every_pair_finds_its_own_row_among_the_distinct_ones(partner, size):
    batches = [np.arange(len(partner))[first : first + size] for first in range(0, len(partner), size)]
    for rows, question in zip(batches, listed(partner).requests(batches), strict=True):
        asked = [*question.rows.tolist(), -1]
        assert asked[:-1] == sorted({row for row in partner[rows].ravel().tolist() if row >= 0})
        assert [[asked[place] for place in places] for places in question.position.tolist()] == partner[rows].tolist()


def test_questions_go_on_beyond_the_first_group():
    partner = np.arange(PREFETCHED_BATCHES + 3)[:, None] % N_ROWS
    batches = [np.array([row]) for row in range(len(partner))]
    asked = [question.rows.item() for question in listed(partner).requests(batches)]
    assert asked == partner[:, 0].tolist()


@settings(deadline=None)
@given(arrays(np.float64, (5, 4), elements=st.floats(-3, 3)))
def test_the_sort_gate_sorts_and_keeps_pairs_together(similarity):
    neighbours = Links(np.arange(20).reshape(5, 4), similarity)
    for order in (BySimilarity(), Shuffled()):
        arranged = order.arrange(neighbours, np.random.default_rng(0))
        assert (similarity.ravel()[arranged.partner] == arranged.overall).all()
        assert (np.sort(arranged.partner, axis=1) == neighbours.partner).all()
    assert (np.diff(BySimilarity().arrange(neighbours, np.random.default_rng(0)).overall, axis=1) >= 0).all()
    assert (keep_most_similar(neighbours).overall[:, 0] == similarity.max(axis=1)).all()


@given(labels)
def test_labels_come_back_from_their_scale(values):
    spread = np.abs(values).max()
    for scale in (MinMaxLabel(), StandardLabel()):
        target = scale.fit(values)
        back = target.decode_predictions(target.encode_labels(values).astype(np.float64)[:, None])
        np.testing.assert_allclose(back, values, atol=1e-6 * spread + 1e-9, rtol=0)


@cache
def undisturbed(parties):
    with TemporaryDirectory() as folder:
        return run(encoded_config(epochs=EPOCHS), parties, folder=folder), last_tensors(Path(folder))


kills = st.sets(st.integers(1, 3 * EPOCHS * STEPS), max_size=8)  # counted over restarts


@settings(deadline=None, max_examples=20)
@given(kills, st.integers(1, 3), st.none() | st.integers(1, 4), st.integers(1, 3))
def test_kills_at_any_steps_change_no_bit(kills, save_every, save_steps, parties):
    whole, left = undisturbed(parties)
    config = replace(encoded_config(epochs=EPOCHS), save_every=save_every, save_steps=save_steps)
    with TemporaryDirectory() as folder:
        survivor = survive(config, folder, KillAt(*kills), parties)
        assert last_tensors(Path(folder)) == left
    assert same_bits(whole, survivor)
    assert without_time(whole.history) == without_time(survivor.history)
