"""The work behind ``fedsim demo``: tables, an agreement, three processes, a ladder, a report."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
import typer

from fedsim.cli.comparing import learning_of
from fedsim.cli.demo_folder import Scene, agree, fresh_folder, write_tables
from fedsim.cli.demo_parties import progress_of, run_parties
from fedsim.cli.demo_telling import UNIT, Teller, Told, say_who_saw_what, say_worth
from fedsim.experiment.job_cases import JobCases
from fedsim.experiment.ladder import climbed
from fedsim.experiment.results import Results
from fedsim.linkage.whole_file import whole_file
from fedsim.party.run_record import RunRecord, read_record
from fedsim.report.ladder import FILE as LADDER
from fedsim.report.run_page import write_report
from fedsim.report.words import count, duration, measure

SPLIT = "group"


def demonstrate(folder: Path, seed: int, *, quiet: bool, as_json: bool) -> None:
    """All of it in one folder; raises where anything fails."""
    teller = Teller(quiet or as_json)
    fresh_folder(folder)
    teller.say("A city knows what its flats cost; another organisation has rentals. They share no key, only places.")
    scene = _prepared(folder, seed, teller)
    record = _trained(scene, teller)
    ladder = _compared(scene, teller)
    page = write_report(scene.run_of("city"), mapped=scene.parties["city"])
    teller.say()
    say_who_saw_what(scene, teller)
    teller.say()
    say_worth(scene, record, ladder, teller)
    teller.say()
    seconds = time.perf_counter() - teller.started
    teller.say(f"Done in {duration(seconds)}. The report, with charts of all this:")
    teller.say(f"  {page}")
    teller.say(
        f"Everything is in {folder}: tables, job and party files, certificates, logs, models. With your own tables:"
    )
    teller.say("  fedsim init    writes job and party files; then: fedsim check, fedsim compare, fedsim train")
    if as_json:
        found = {"folder": str(folder), "report": str(page), "seconds": seconds, "metrics": record.metrics}
        typer.echo(json.dumps({**found, "ladder": ladder, "truth": scene.town.truth.worth("rentals")}))


def _prepared(folder: Path, seed: int, teller: Teller) -> Scene:
    began = time.perf_counter()
    town = write_tables(folder, seed)
    tables = f"flats.csv ({count(len(town.flats))} records) and rentals.csv ({count(len(town.rentals))})"
    teller.phase("tables", f"generated {tables}, of which the truth is known", time.perf_counter() - began)
    began = time.perf_counter()
    scene = agree(folder, town)
    words = "one job file for all, a key for the two that link, certificates and approvals for three"
    teller.phase("agree", words, time.perf_counter() - began)
    return scene


def _trained(scene: Scene, teller: Teller) -> RunRecord:
    told = Told(scene, teller)
    with teller.bar("train") as move:
        run_parties(scene, lambda found: told.watch(found, move))
    told.watch(progress_of(scene.run_of("city")), lambda done, total: None)
    record = read_record(scene.run_of("city"))
    epochs = f"FedSim, best of {len(record.history)} epochs: {record.best_epoch}"
    score = f"rmse {measure(record.metrics['test']['rmse'])} {UNIT} on {count(record.table.test)} test flats"
    teller.phase("train", f"{epochs}; {score}", told.seconds("train") + told.seconds("explain"), told.bytes("train"))
    return record


def _compared(scene: Scene, teller: Teller) -> dict[str, Any]:
    """Every rung once, under the split that keeps equal places together; what is trained lies in its own folder."""
    began, folder = time.perf_counter(), scene.folder / "compare"
    tables = JobCases.read(scene.job, list(scene.parties.values()), folder, UNIT)
    rungs = learning_of(scene.job).rungs()
    torch.set_num_threads(scene.job.training.threads)
    with teller.bar("compare") as move:
        done = iter(range(1, len(rungs) + 1))
        ladder = climbed(
            tables.cases(1, (SPLIT,)), rungs, Results(folder), lambda _: move(next(done), len(rungs))
        ).described()
    with whole_file(scene.run_of("city") / LADDER) as part:
        part.write_text(json.dumps(ladder, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    words = f"{len(rungs)} rungs, each trained anew: alone, with the partner, with partners that cannot help"
    teller.phase("compare", words, time.perf_counter() - began)
    return ladder
