"""Run folders as a primary leaves them, written in a moment; names may be as hostile as one likes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedsim.config.job import Job
from fedsim.config.stored_audit import Adversary, AttackKind, Victim
from fedsim.contribution.ladder import RUNGS, STEPS
from fedsim.protocol.messages import LedgerEntry
from fedsim.runs.record import (
    ExampleRecord,
    GateCurve,
    GateImportance,
    GroupError,
    LinkListSummary,
    PhaseCost,
    RunRecord,
    TableSummary,
    read_run_record,
    write_run_record,
)
from fedsim.runs.run_folder import append_to_ledger
from fedsim.types import Explanation, PartnerEffect
from fedsim_audit.attacks.attack_finding import AttackFinding, IntervalEstimate
from fedsim_audit.audit_report import NEVER_ATTACKED, AuditReport, AuditRow, Guarantee

HOSTILE = '</script><script>console.error("ran")</script><img src=x onerror=console.error(1)> "left" & {{ 7 * 7 }}'
TEST = 120


def described(**training: Any) -> dict[str, Any]:
    """A job with two partners."""
    schema = {"version": 1, "fields": [{"column": "name", "encoding": {"kind": "string"}}]}
    job = {
        "name": "flats",
        "coordinator": {"name": "notary", "address": "127.0.0.1:50051"},
        "primary": {"name": "city", "address": "127.0.0.1:50052"},
        "task": {"kind": "regression"},
        "training": training,
        "secondaries": {"rentals": {"k": 6, "tau": 0.05, "schema": schema}, "left": {"k": 3, "schema": schema}},
    }
    return Job.from_dict(job).to_dict()


def record_of(column: str = "area", **training: Any) -> RunRecord:
    """A run whose own columns and classes are called as one wishes."""
    rng, job = np.random.default_rng(3), described(**training)
    history = [
        {"number": n, "loss": 1 / n, "validation_loss": 1.1 / n, "validation": {"rmse": 60.0 / n}, "seconds": 1.0}
        for n in range(1, 13)
    ]
    return RunRecord(
        job=job,
        hash=Job.from_dict(job).hash,
        party="city",
        started="2026-11-15T10:00:00+00:00",
        seconds=75.0,
        versions={"fedsim": "0.1.0", "threads": "1"},
        machine={"processor": "a fast one"},
        config={"epochs": 12},
        table=TableSummary(600, 420, 60, TEST, "d" * 64, column, [column, "age"]),
        classes=[],
        history=history,
        best_epoch=12,
        metrics={"validation": {"rmse": 5.0}, "test": {"rmse": 5.5, "r2": 0.7}},
        lists=[LinkListSummary(name, k, 600, 90, _ranks(k), [(0, 10), (1, 40), (7, 40)]) for name, k in _lists(job)],
        curves=[GateCurve("rentals", [-3.0, 0.0, 3.0], [0.1, 0.4, 0.9])],
        importances=[GateImportance("rentals", rng.random((6, 4)).tolist())],
        groups=[GroupError(column, f"{column} {part}", 24, 5.0 + part, 0.5 - part) for part in range(5)],
        phases=[PhaseCost("join", 1.0, 10**8), PhaseCost("train", 74.0, 4 * 10**8)],
        explained=[ExampleRecord(row, 500.0 + row, _explanation(row, column)) for row in (4, 71, 119)],
    )


def _explanation(row: int, column: str) -> Explanation:
    effects = [8.0, -5.0, 3.0, -2.0, 1.0, 0.5]
    partners = [PartnerEffect("rentals", row + n, 1.5 - n, effect, 0.25 + n / 8) for n, effect in enumerate(effects)]
    without = {"rentals": 500.0, "left": 504.5}
    return Explanation(505.5, 505.5, 500.0, partners, without, {column: 40.25, "age": -3.0}, 450.0, 560.0)


def _lists(job: dict[str, Any]) -> list[tuple[str, int]]:
    return [(name, terms["k"]) for name, terms in job["secondaries"].items()]


def _ranks(k: int) -> list[list[float]]:
    return [[-1.0 - rank, -0.5 - rank, -float(rank), 0.5 - rank, 1.0 - rank] for rank in range(k)]


def write_run(folder: Path, record: RunRecord) -> None:
    """The record with test records to go with it, and a ledger."""
    rng = np.random.default_rng(5)
    if record.classes:
        names = [str(name) for name in record.classes]
        truth, found = rng.choice(names, TEST), rng.choice(names, TEST)
        test = pl.DataFrame(
            {"row": range(TEST), "truth": truth, "predicted": found, "confidence": rng.uniform(0.5, 1, TEST)}
        )
    else:
        truth = rng.normal(500, 100, TEST)
        test = pl.DataFrame({"row": range(TEST), "truth": truth, "predicted": truth + rng.normal(0, 20, TEST)})
    folder.mkdir(parents=True, exist_ok=True)
    write_run_record(folder, record, test)
    city, rentals = "primary 'city'", "secondary 'rentals'"
    kinds = [("ask", city, rentals), ("activations", rentals, city), ("gradients", city, rentals)]
    append_to_ledger(
        folder, [LedgerEntry("train", kind, *way, 10, 10**n) for n, (kind, *way) in enumerate(kinds, start=4)]
    )


def classified(record: RunRecord, *classes: str) -> RunRecord:
    """The same run for classes."""
    job = record.job | {"task": record.job["task"] | {"kind": "classification"}}
    metrics = {"test": {"accuracy": 0.7, "log_loss": 0.6}}
    return replace(record, job=job, classes=list(classes), metrics=metrics, curves=[], importances=[])


def write_ladder(
    folder: Path, *, worth: str = "This partner is worth 14 S$ less error.", seeds: int = 3, **more: Any
) -> None:
    """What ``fedsim compare`` leaves."""
    splits = ("random", "group")
    rungs = [
        {**_rung(rung.key, rung.name, 60.0 - place, seeds), "split": split}
        for split in splits
        for place, rung in enumerate(RUNGS)
    ]
    gain = {"estimate": 4.0, "low": -1.0, "high": 9.0}
    gains = [{"key": key, "split": split, **gain} for split in splits for key in STEPS]
    about = {"job": "flats", "unit": "S$", "metric": "rmse", "task": "regression", "lower_is_better": True}
    about |= {"seeds": seeds, "records": TEST, "worth": worth, "models": "Compared."}
    ladder = {"format": 2, **about, "rungs": rungs, "gains": gains}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ladder.json").write_text(json.dumps(ladder | more))


def _rung(key: str, name: str, mean: float, seeds: int) -> dict[str, Any]:
    values = [mean + step for step in range(seeds)]
    return {
        "key": key,
        "name": name,
        "values": values,
        "mean": mean,
        "deviation": 1.0 if seeds > 1 else None,
        "seconds": 2.0,
    }


def write_audit(folder: Path, about: str = "rentals", job_hash: str | None = None) -> None:
    """What ``fedsim audit`` leaves, of the run's own job where no other is named."""
    found = AttackFinding(
        "greedy",
        AttackKind.LIKELIHOOD,
        Adversary.PRIMARY,
        "share",
        IntervalEstimate(0.9, 0.8, 1.0),
        0.0,
        10,
        "all",
        {},
        1.0,
    )
    row = AuditRow(about, Victim.SECONDARY, "its filter", found, Guarantee("tau=0.05", 0.05))
    job_hash = read_run_record(folder).hash if job_hash is None else job_hash
    report = AuditReport("flats", job_hash, 0.01, (row,), NEVER_ATTACKED, (), ())
    (folder / "audit.json").write_text(json.dumps(report.as_dict()))
