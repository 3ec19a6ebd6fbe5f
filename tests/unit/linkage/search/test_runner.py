"""Equal records are searched once."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.linkage import topk


def test_records_that_share_a_hash_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsim.linkage.search.runner._row_hashes", lambda rows: np.zeros(len(rows), np.uint64))
    partner, _ = topk(np.eye(3), np.eye(3), metric="euclidean", k=1)
    assert partner.tolist() == [[0], [1], [2]]


def test_progress_ends_with_all_records() -> None:
    calls: list[tuple[int, int]] = []
    records = np.random.default_rng(0).normal(size=(5_000, 2))
    topk(records, records, metric="euclidean", k=1, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (5_000, 5_000)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
