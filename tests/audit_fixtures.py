"""A small job and what an audit finds in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedsim.config.job import read_job
from fedsim.config.party_file import read_party_file
from fedsim_audit import linkage_attacks
from fedsim_audit.audit_report import AuditSettings, Verdict, run_attacks
from fedsim_audit.audit_run import prepare_audit, read_audit_tables

FAST = AuditSettings(targets=50, epochs=1, most_records=300)


def read_party_files(folder: Path, *names: str):
    return [read_party_file(folder / f"{name}.toml") for name in names]


def audited_linkage(folder: Path, seed: int = 0, **changes):
    job, settings = read_job(folder / "job.toml"), replace(FAST, seed=seed)
    tables = read_audit_tables(job, read_party_files(folder, "city", "rentals"), 300, np.random.default_rng(seed))
    return prepare_audit(job, tables, "rentals", settings)[0].setup.linkage(**changes)


def primary_verdicts(linkage, seed: int = 0) -> dict[str, Verdict]:
    attempts = linkage_attacks.primary_attacks(linkage, FAST, np.random.default_rng(seed))
    rows, _ = run_attacks("rentals", attempts, FAST.memory)
    return {row.found.attack: row.verdict for row in rows}


def tables_of(folder: Path, job):
    return read_audit_tables(job, read_party_files(folder, "city", "rentals"), 300, np.random.default_rng(0))
