"""Measure the job that ``fedsim init --yes`` proposes, unchanged and run with the commands a user would type.

``fedsim lab bench default_job`` runs all cases, ``fedsim lab bench default_job -- firms registers`` some of them:

* ``firms``, ``registers``, ``other-registers``, ``city``: the share of the attainable contribution, (alone - job) /
  (alone - attainable). "Alone" is the method solo with the job's own features, split and preset. For registers,
  "attainable" is the error of the same job with every firm in the other register spelled as in ours; for the city, the
  rentals' contribution by construction is attainable. Three draws each; ``--draws N`` runs the first N.
* ``places``, ``trips``, ``films``: the error on the test records, time and peak memory. The full places and trips cases
  take long: ``-- places trips --epochs 1``.

All parties run in one process, which yields the same weights as over a network. Trips and films are read from
``FEDSIM_DATA``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from fedsim.config import read_job, read_party_file
from fedsim.contribution.job_ladder import JobCases
from fedsim.contribution.rungs import Rung, run_training
from fedsim.data.synthetic import LABEL, generate_city
from fedsim.runs.record import read_test_predictions
from fedsim_lab.datasets.generated import FIRMS_LABEL, Firms, KnownFirms, add_credits, generate_firms
from fedsim_lab.datasets.registers import LANGUAGES, OTHER_LANGUAGES, Language, generate_registers
from linkage_data import DATA
from quality_data import dense_places

FILES = ("ours.toml", "theirs.toml")
KILOBYTES_PER_GIGABYTE = 1024**2


@dataclass(frozen=True)
class CommandResult:
    """The JSON output of a command, and its time and memory."""

    value: dict[str, Any]
    seconds: float
    peak: float  # GB

    def __str__(self) -> str:
        return f"{self.seconds:.0f} s, {self.peak:.1f} GB"


def fedsim(folder: Path, *words: str) -> CommandResult:
    """Run a command in a folder, in a separate process, and return its JSON output."""
    command, start = [sys.executable, "-m", "fedsim", *words, "--json", "--quiet"], time.perf_counter()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        child = subprocess.Popen(command, cwd=folder, stdout=output)  # noqa: S603
        _, child.returncode, used = os.wait4(child.pid, 0)
        assert child.returncode == 0, words
        output.seek(0)
        text = output.read()
    return CommandResult(
        json.loads(text) if text else {}, time.perf_counter() - start, used.ru_maxrss / KILOBYTES_PER_GIGABYTE
    )


def init(folder: Path, ours: pl.DataFrame, theirs: pl.DataFrame, label: str, *words: str) -> CommandResult:
    """Write two tables and let init propose a job for them."""
    ours.write_csv(folder / "ours.csv")
    theirs.write_csv(folder / "theirs.csv")
    tables = ["--primary", "ours.csv", "--secondary", "theirs.csv", "--label", label]
    return fedsim(folder, "init", *tables, *words, "--yes")


def change_job(folder: Path, old: str, new: str) -> None:
    """Change one line of the job."""
    path = folder / "job.toml"
    text = path.read_text(encoding="utf-8")
    assert old in text, old
    path.write_text(text.replace(old, new), encoding="utf-8")


def train(folder: Path) -> CommandResult:
    """Approve and train the job of a folder."""
    for file in FILES:
        fedsim(folder, "approve", "job.toml", file, "--yes")
    return fedsim(folder, "train", "job.toml", *FILES)


def error_alone(folder: Path) -> float:
    """Return the RMSE of the primary alone on the job's test records."""
    torch.set_num_threads(1)
    job, parties = read_job(folder / "job.toml"), [read_party_file(folder / file) for file in FILES]
    cases = JobCases.read(job, parties, folder / "alone", as_in_job=True)
    (arrays,) = cases.cases(1, [job.task.split])
    return run_training(Rung("solo", "alone", "solo"), arrays).test["rmse"]


def registers(seed: int, languages: Sequence[Language]) -> KnownFirms:
    rng = np.random.default_rng(seed)
    drawn = generate_registers(rng, languages=languages)
    return add_credits(rng, Firms(*(pl.DataFrame({"name": side}) for side in (drawn.ours, drawn.theirs)), drawn.truth))


REGISTERS: dict[str, tuple[range, Callable[[int], KnownFirms]]] = {
    "firms": (range(30, 33), lambda seed: generate_firms(np.random.default_rng(seed))),
    "registers": (range(40, 43), lambda seed: registers(seed, LANGUAGES)),
    "other-registers": (range(50, 53), lambda seed: registers(seed, OTHER_LANGUAGES)),
}


def spell_alike(drawn: KnownFirms) -> KnownFirms:
    """Give every match in the other register our own spelling."""
    names, known = drawn.theirs["name"].to_list(), np.flatnonzero(drawn.match >= 0)
    for row in known:
        names[drawn.match[row]] = drawn.ours["name"][int(row)]
    return replace(drawn, theirs=drawn.theirs.with_columns(name=pl.Series(names)))


@dataclass(frozen=True)
class FoundShare:
    """What a job found of the attainable contribution; all but ``share`` are RMSE of the test records."""

    alone: float
    job: float
    attainable: float  # the contribution
    training: str

    @property
    def share(self) -> float:
        return (self.alone - self.job) / self.attainable

    def __str__(self) -> str:
        gain = self.alone - self.job
        numbers = " | ".join(f"{value:.2f}" for value in (self.alone, self.job, gain, self.attainable))
        return f"{numbers} | {100 * self.share:.0f} % | {self.training}"


def share_of_registers(draw: Callable[[int], KnownFirms], seed: int, folder: Path) -> FoundShare:
    """Run the default job of two registers, and again with all matches spelled alike."""
    drawn, own, known = draw(seed), folder / "own", folder / "known"
    own.mkdir()
    init(own, drawn.ours, drawn.theirs, FIRMS_LABEL)
    change_job(own, 'split = "random"', 'split = "group"')
    shutil.copytree(own, known)
    spell_alike(drawn).theirs.write_csv(known / "theirs.csv")
    alone, done, best = error_alone(own), train(own), train(known)
    job, matches = (run.value["metrics"]["test"]["rmse"] for run in (done, best))
    return FoundShare(alone, job, alone - matches, str(done))


def share_of_city(seed: int, folder: Path) -> FoundShare:
    """Run the default job of a city's flats and rentals."""
    city = generate_city(np.random.default_rng(seed))
    init(folder, city.flats, city.rentals, LABEL)
    change_job(folder, 'split = "random"', 'split = "group"')
    alone, done = error_alone(folder), train(folder)
    return FoundShare(alone, done.value["metrics"]["test"]["rmse"], city.truth.contribution("rentals"), str(done))


SHARES: dict[str, tuple[range, Callable[[int, Path], FoundShare]]] = {
    **{name: (seeds, partial(share_of_registers, draw)) for name, (seeds, draw) in REGISTERS.items()},
    "city": (range(60, 63), share_of_city),
}


def share_table(names: Sequence[str], draws: int | None) -> None:
    """Print a row per draw, and the mean of every set."""
    heads = ("set, draw", "alone", "job", "gain", "attainable", "share", "training")
    print(f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", sep="\n", flush=True)
    for name in names:
        seeds, measure = SHARES[name]
        shares = []
        for seed in seeds[:draws]:
            with tempfile.TemporaryDirectory() as folder:
                found = measure(seed, Path(folder))
            shares.append(found.share)
            print(f"| {name}, {seed} | {found} |", flush=True)
        print(f"| **{name}, mean** |{' |' * (len(heads) - 3)} **{100 * np.mean(shares):.0f} %** | |", flush=True)


def places_tables() -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return dense places; their labels do not depend on the partner, because only the linkage is measured."""
    rng = np.random.default_rng(0)
    ours, theirs = (pl.DataFrame(side, schema=["lat", "lon"]) for side in dense_places(rng))
    area = rng.gamma(9.0, 10.0, len(ours))
    return (
        ours.with_columns(
            area=pl.Series(area.round(1)), price=pl.Series((area + rng.normal(0, 20, len(ours))).round(1))
        ),
        theirs.with_columns(rent=pl.Series(rng.normal(30, 6, len(theirs)).round(2))),
    )


def read_tables(primary: str, secondary: str) -> tuple[pl.DataFrame, pl.DataFrame] | None:
    if not (DATA / primary).is_file():
        return None
    ours, theirs = (pl.read_csv(DATA / file, infer_schema=False) for file in (primary, secondary))
    return ours, theirs


TABLES: dict[str, tuple[Callable[[], tuple[pl.DataFrame, pl.DataFrame] | None], str]] = {
    "places": (places_tables, "price"),
    "trips": (lambda: read_tables("taxi/bike_trips.csv.gz", "taxi/taxi_trips.csv.gz"), "duration"),
    "films": (lambda: read_tables("films/imdb.csv.gz", "films/tmdb.csv.gz"), "numvotes"),
}


def table_case(name: str, asked: argparse.Namespace, folder: Path) -> None:
    """Print what ``init`` measures for a pair of tables, and the result of its job."""
    tables, label = TABLES[name]
    pair = tables()
    if pair is None:
        print(f"{name}: skipped, no data")
        return
    ours, theirs = pair
    if asked.records and asked.records < len(ours):
        ours = ours.sample(asked.records, seed=0)
    proposed = init(folder, ours, theirs, label, *(("--epochs", str(asked.epochs)) if asked.epochs else ()))
    k = proposed.value["k"]
    print(f"{name}: {len(ours):,} x {len(theirs):,}; init: {proposed}", flush=True)
    print(f"  linked by {', '.join(pair['primary'] for pair in proposed.value['link_by'])}, K = {k}")
    if asked.change:
        change_job(folder, *asked.change)
    done = train(folder)
    print(f"  train: {done}; {done.value['epochs']} epochs; split {proposed.value['split']}")
    print(f"  test: {done.value['metrics']['test']}")
    if proposed.value["label_scale"] == "log":
        test = read_test_predictions(folder / done.value["folder"])
        truth, found = (np.log(test[column].to_numpy()) for column in ("truth", "predicted"))
        print(f"  R2 of the logarithm: {1 - ((truth - found) ** 2).mean() / truth.var():.3f}", flush=True)


def main(words: Sequence[str] | None) -> None:
    """Run some cases; by default, all whose data is available."""
    parser = argparse.ArgumentParser("fedsim lab bench default_job --")
    known = [*SHARES, *TABLES]
    parser.add_argument("cases", nargs="*", choices=[*known, []], metavar="CASE", help=", ".join(known))  # [] is none
    parser.add_argument("--draws", type=int, help="draws of each set; default: all")
    parser.add_argument("--records", type=int, help="primary records in places, trips and films; default: all")
    parser.add_argument("--epochs", type=int, help="maximum epochs in places, trips and films; default: as in init")
    parser.add_argument("--change", nargs=2, metavar=("OLD", "NEW"), help="replace a line of that job")
    asked = parser.parse_args(words or ())
    cases = asked.cases or known
    if chosen := [name for name in cases if name in SHARES]:
        share_table(chosen, asked.draws)
    for name in cases:
        if name in TABLES:
            with tempfile.TemporaryDirectory() as folder:
                table_case(name, asked, Path(folder))
