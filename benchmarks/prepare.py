"""Processor time and memory of preparing a party's table: reading, splitting by group, label, features, identifiers.

``python benchmarks/prepare.py`` writes a table of 1,000,000 records with 30 columns (numbers, categories, ISO dates and
identifiers), prepares it as the primary of a job does, in a process of its own, and prints what that took beyond the
imports. Memory is the peak of private memory; network inputs are in a mapped file, as in a job.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import polars as pl

from fedsim.config.job import read_job
from fedsim.config.party_file import read_party_file
from fedsim.pipeline.party_table import PartyData

NUMBERS, CATEGORIES, DATES = 16, 8, 2  # with two coordinates, a name and the label: 30 columns
WORDS = ("Harbour", "Garden", "Mill", "Castle", "River", "Station", "Church", "Market", "Park", "Bridge")
MEBI = 1024.0

JOB = """
name = "prepare"
[coordinator]
name = "notary"
address = "127.0.0.1:7411"
[primary]
name = "ours"
address = "127.0.0.1:7412"
[task]
kind = "regression"
split = "group"
[secondaries.theirs]
k = 5
metric = "hamming"
tau = 0.05
[secondaries.theirs.schema]
version = 1
fields = [
  { column = "lat", encoding = { kind = "numeric", low = 0.9, high = 1.8, threshold = 0.05 } },
  { column = "lon", encoding = { kind = "numeric", low = 103.3, high = 104.4, threshold = 0.05 } },
  { column = "name", encoding = { kind = "string" } },
]
"""
PARTY = """
name = "ours"
role = "primary"
folder = "run"
[data]
file = "table.csv"
[label]
column = "price"
[linkage]
key = "linkage.key"
[features]
drop = ["name"]
kinds = { day0 = "date", day1 = "date" }
"""


def write_table(folder: Path, n_records: int, rng: np.random.Generator) -> None:
    """Write a table, a job and a party file."""
    texts = [f"{left} {right}" for left in WORDS for right in WORDS]
    columns: dict[str, object] = {"lat": rng.uniform(1.2, 1.5, n_records).round(5)}
    columns["lon"] = rng.uniform(103.6, 104.0, n_records).round(5)
    columns["name"] = pl.Series(texts).gather(rng.integers(0, len(texts), n_records)) + pl.Series(
        rng.integers(1, 200, n_records)
    ).cast(pl.String)
    columns |= {f"number{place}": rng.normal(size=n_records).round(4) for place in range(NUMBERS)}
    for place in range(CATEGORIES):
        columns[f"kind{place}"] = pl.Series(WORDS[: 3 + place]).gather(rng.integers(0, 3 + place, n_records))
    for place in range(DATES):
        columns[f"day{place}"] = pl.Series(rng.integers(10_000, 20_000, n_records)).cast(pl.Int32).cast(pl.Date)
    columns["price"] = rng.normal(size=n_records).round(4)
    pl.DataFrame(columns).write_csv(folder / "table.csv")
    (folder / "job.toml").write_text(JOB, encoding="utf-8")
    (folder / "party.toml").write_text(PARTY, encoding="utf-8")


def private_memory() -> float:
    """Return the private memory of this process in MB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("RssAnon")) / MEBI


def prepare(folder: Path) -> PartyData:
    """Prepare the table as the primary of a job does."""
    table = PartyData.read(read_job(folder / "job.toml"), read_party_file(folder / "party.toml"))
    split = table.draw_split("group", np.random.default_rng(0))
    preparation = table.fit_features(split.train)
    preparation.apply(table.typed_features, folder)
    preparation.typical_record(table.typed_features, split.train)
    return table


def measure(folder: Path) -> None:
    """Print what :func:`prepare` takes in this process."""
    start, peak, done = private_memory(), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            peak[0] = max(peak[0], private_memory())

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    began = time.process_time()
    table = prepare(folder)
    seconds = time.process_time() - began
    done.set()
    watching.join()
    print(f"{len(table):,} records x {table.frame.width} columns: {seconds:.1f} CPU s, {peak[0] - start:,.0f} MB")


def main() -> None:
    """Write a table and measure in a fresh process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="measure the table in this folder (made by an earlier run)")
    given = parser.parse_args()
    if given.folder:
        measure(given.folder)
        return
    with tempfile.TemporaryDirectory() as name:
        write_table(Path(name), given.records, np.random.default_rng(0))
        subprocess.run([sys.executable, __file__, "--folder", name], check=True)  # noqa: S603


if __name__ == "__main__":
    main()
