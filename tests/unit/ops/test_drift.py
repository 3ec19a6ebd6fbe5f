"""The population stability index of served records against those of training."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedsim_ops.drift import BLOCKS, MIN_RECORDS, DriftMonitor, drift_facts, stability_index


def trained_monitor(rng, n=2000):
    numbers, codes = rng.normal(size=(n, 2)), rng.integers(0, 3, (n, 1))
    numbers[: n // 10, 1] = np.nan
    facts = json.loads(json.dumps(drift_facts(numbers, codes, (3,), {"rentals": rng.normal(size=n)})))
    return DriftMonitor.from_facts(facts)


def served_records(rng, n, shift=0.0):
    return rng.normal(shift, 1, size=(n, 2)), rng.integers(0, 3, (n, 1))


def test_the_index_is_that_of_its_definition():
    before, after = np.array([30, 50, 20, 0]), np.array([5, 5, 0, 0])
    p, q = [30 / 100, 50 / 100, 20 / 100], [5 / 10.5, 5 / 10.5, 0.5 / 10.5]
    expected = sum((b - a) * np.log(b / a) for a, b in zip(p, q, strict=True))
    assert stability_index(before, after) == pytest.approx(expected)


def test_drift_is_small_for_records_like_those_of_training_and_large_for_others():
    rng = np.random.default_rng(0)
    same, other = trained_monitor(rng), trained_monitor(rng)
    same.add(*served_records(rng, 1000))
    other.add(*served_records(rng, 1000, shift=1.0))
    assert len(same.inputs.psi) == 3
    assert same.inputs.psi[0] < 0.05
    assert same.inputs.psi[2] < 0.05
    assert min(other.inputs.psi[:2]) > 0.25
    same.add_similarity("rentals", rng.normal(3, 1, MIN_RECORDS))
    assert same.lists["rentals"].psi[0] > 0.25


def test_no_two_figures_differ_by_one_record():
    rng = np.random.default_rng(1)
    monitor, seen = trained_monitor(rng), []
    for _ in range(MIN_RECORDS * 4):
        monitor.add(*served_records(rng, 1))
        seen.append((monitor.inputs.records, tuple(monitor.inputs.psi)))
    assert [seen[place - 1] for place in (99, 100, 199)] == [(0, ()), seen[100], seen[100]]
    assert len(set(seen)) == 5


def test_old_records_are_forgotten():
    rng = np.random.default_rng(2)
    monitor = trained_monitor(rng)
    monitor.add(*served_records(rng, 1000, shift=5.0))
    for _ in range(BLOCKS):
        monitor.add(*served_records(rng, MIN_RECORDS))
    assert monitor.inputs.records == BLOCKS * MIN_RECORDS
    assert monitor.inputs.psi[0] < 0.05
