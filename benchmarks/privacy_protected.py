"""Jobs on the paper's hdb and house, with and without the preset, and what each side infers from what crosses the cut.

The label is a class, price above the median or not. The attacks use the mean of everything that was sent for a row over
the whole run, with the noise that the parties add.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

from fedsim.config.job import Job, read_job
from fedsim.config.party_file import read_party_file
from fedsim.config.stored_audit import AttackKind
from fedsim.linkage.encoding import Key
from fedsim.runtime.primary import training_config
from fedsim.training import train
from fedsim_audit import split_attacks
from fedsim_audit.audit_report import AuditSettings, run_attacks
from fedsim_audit.audit_run import PreparedAudit, prepare_audit, read_audit_tables
from fedsim_lab.datasets.dataset_registry import load_dataset
from privacy_links import DATA, PLACE, K

RECORDS, EPOCHS, SEED = 12_000, 15, 0
RANGES = {"hdb": ((1.1, 1.6), (103.5, 104.2), 0.1), "house": ((39.3, 41.2), (115.2, 117.8), 0.05)}
JOBS = {
    "plain": "",
    "features": "[protection]\nfeatures = { noise = 4.0 }",
    "sealed": '[protection]\ngradients = "none"',
    "protected": '[protection]\npreset = "protected"',
}
JOB = """
name = "{name}"
seed = {seed}
coordinator = {{ name = "notary", address = "127.0.0.1:50051" }}
primary = {{ name = "homes", address = "127.0.0.1:50052" }}
task = {{ kind = "classification" }}
training = {{ epochs = {epochs} }}

{protection}

[secondaries.partner]
k = {k}

[secondaries.partner.schema]
version = 1
fields = [
  {{ column = "lat", encoding = {{ kind = "numeric", low = {lat[0]}, high = {lat[1]}, threshold = {threshold} }} }},
  {{ column = "lon", encoding = {{ kind = "numeric", low = {lon[0]}, high = {lon[1]}, threshold = {threshold} }} }},
]
"""
PARTY = """
name = "{name}"
role = "{role}"
folder = "{name}-run"
data = {{ file = "{name}.csv" }}
linkage = {{ key = "linkage.key" }}
"""


def measured(name: str) -> Iterator[str]:
    """Yield one row of the table for the primary alone, and one for every job."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        write_tables(name, folder)
        for words, protection in JOBS.items():
            audited, settings = _prepared(folder, _job(name, folder, protection))
            if words == "plain":
                yield f"alone | {_alone(audited):.4f} | | |"
            yield f"{words} | {_attacked(audited, settings)}"


def write_tables(name: str, folder: Path) -> None:
    """Write both tables, with a sample of the primary's records and the price as two classes."""
    found = load_dataset(name, DATA)
    homes, partner = found.primary.frame, found.secondaries[0].table
    dear = (pl.col(found.label) > pl.col(found.label).median()).cast(pl.Int8).alias("dear")
    rows = np.sort(np.random.default_rng(SEED).choice(len(homes), RECORDS, replace=False))
    homes.select(*found.primary.features, *PLACE, dear)[rows].write_csv(folder / "homes.csv")
    partner.frame.select(*partner.features, *PLACE).write_csv(folder / "partner.csv")
    label = 'label = { column = "dear" }\n'
    (folder / "homes.toml").write_text(PARTY.format(name="homes", role="primary") + label)
    (folder / "partner.toml").write_text(PARTY.format(name="partner", role="secondary"))
    Key(bytes(range(32))).write(folder / "linkage.key")


def _job(name: str, folder: Path, protection: str) -> Job:
    lat, lon, threshold = RANGES[name]
    text = JOB.format(
        name=name, seed=SEED, epochs=EPOCHS, protection=protection, k=K, lat=lat, lon=lon, threshold=threshold
    )
    (folder / "job.toml").write_text(text)
    return read_job(folder / "job.toml")


def _prepared(folder: Path, job: Job) -> tuple[PreparedAudit, AuditSettings]:
    settings = AuditSettings(most_records=RECORDS, epochs=EPOCHS, seed=SEED)
    files = [read_party_file(folder / f"{name}.toml") for name in ("homes", "partner")]
    tables = read_audit_tables(job, files, RECORDS, np.random.default_rng([SEED, 0]))
    return prepare_audit(job, tables, "partner", settings)[0], settings


def _alone(audited: PreparedAudit) -> float:
    subject = _subject(audited)
    config = replace(training_config(subject.job, "solo"), patience=None, save_steps=None)
    result = train(subject.primary, [], subject.split, config)
    return result.metrics["test"]["auc"]


def _attacked(audited: PreparedAudit, settings: AuditSettings) -> str:
    subject, rng = _subject(audited), np.random.default_rng([SEED, 7])
    heard = split_attacks.record_training(subject, audited.linkage, settings.epochs)
    rows, _ = run_attacks("", split_attacks.training_attacks(heard, subject, audited.linkage, rng), settings.memory)
    shown = []
    for kind in (AttackKind.GRADIENTS, AttackKind.INVERSION):
        shown.append(max((row.found.score for row in rows if row.found.kind is kind), key=lambda score: score.value))
    scores = " | ".join(f"{score.value:.3f} ({score.low:.3f} to {score.high:.3f})" for score in shown)
    return f"{heard.test['auc']:.4f} | {scores} |"


def _subject(audited: PreparedAudit) -> split_attacks.TrainingInputs:
    if audited.inputs is None:
        raise ValueError("the benchmark's own tables have labels")
    return audited.inputs
