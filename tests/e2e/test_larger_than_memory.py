"""A job whose arrays lie in files and are worked on in small parts learns what it learns in memory."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.linkage import private_linkage
from fedsim.protocol.roles import primary_role, secondary_role
from fedsim.runtime import partner_rows
from fedsim.runtime.run_local import run_local
from fedsim.splitnn import secondary_model
from fedsim.storage import tensor_file
from fedsim.training import boosted_trees, primary_steps
from fedsim_lab.faults.local_job import CITY, RENTALS, create_local_job

SIZES = (
    (tensor_file, "MAPPED_BYTES"),
    (private_linkage, "RECORDS_AT_ONCE"),
    (primary_role, "INFERENCE_ROWS"),
    (secondary_role, "INFERENCE_ROWS"),
    (secondary_model, "INFERENCE_ROWS"),
    (secondary_model, "BLOCK_ROWS"),
    (partner_rows, "ROWS_PER_REQUEST"),
    (boosted_trees, "PROJECTED_ROWS"),
    (primary_steps, "ARRANGED_RECORDS"),
)
STACKED = {"training": {"method": "stacked"}, "protection": {"embedding": "random"}}


def test_small_parts_in_files_give_the_weights_of_whole_tables_in_memory(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(boosted_trees, "ROUNDS", 20)
    whole, parts = (create_local_job(tmp_path / name, **STACKED) for name in ("whole", "parts"))
    expected = run_local(whole.job, [whole.own(name) for name in whole.names])
    for module, name in SIZES:
        monkeypatch.setattr(module, name, 7)
    found = run_local(parts.job, [parts.own(name) for name in parts.names])
    assert parts.hashes() == whole.hashes()
    assert found.outcome.metrics["test"] == pytest.approx(expected.outcome.metrics["test"], rel=1e-6)
    assert found.outcome.epochs == expected.outcome.epochs
    left = {path.name for name in (CITY, RENTALS) for path in parts.run(name).rglob("*")}
    assert left == {path.name for name in (CITY, RENTALS) for path in whole.run(name).rglob("*")}
    counts = [next(one.messages for one in run.ledger if one.kind == "infer") for run in (found, expected)]
    assert counts[0] > 3 * counts[1]


def test_uses_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch):
    partner = np.random.default_rng(0).integers(0, 9, (50, 3), dtype=np.int32)
    monkeypatch.setattr(private_linkage, "RECORDS_AT_ONCE", 7)
    assert private_linkage.count_links(partner, 12).tolist() == np.bincount(partner.ravel(), minlength=12).tolist()
