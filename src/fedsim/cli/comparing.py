"""The work behind ``fedsim compare``: the ladder for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from fedsim.experiment.job_cases import SPLITS, JobCases
from fedsim.experiment.ladder import RUNGS, Learning, climbed
from fedsim.experiment.results import Results
from fedsim.linkage.whole_file import whole_file
from fedsim.party.job import Job, read_job
from fedsim.party.party_file import read_party_file
from fedsim.report.words import duration, measure

FILE = "ladder.json"


def compare_and_tell(
    job: Path, parties: Sequence[Path], out: Path, asked: tuple[int, int | None, str], *, quiet: bool, as_json: bool
) -> None:
    """Climb the ladder, write it, print it."""
    described, (seeds, epochs, unit) = read_job(job), asked
    files = [read_party_file(path) for path in parties]
    found = JobCases.read(described, files, out, unit)
    learning = learning_of(described)
    rungs = (learning if epochs is None else replace(learning, epochs=epochs)).rungs()
    tell = counted(len(SPLITS) * seeds * len(rungs), silent=quiet or as_json)
    ladder = climbed(found.cases(seeds), rungs, Results(out), tell).described()
    with whole_file(out / FILE) as part:
        part.write_text(json.dumps(ladder, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(ladder, allow_nan=False))
    elif not quiet:
        for line in lines_of(ladder):
            typer.echo(line)
        typer.echo(f"written: {out / FILE}")


def learning_of(job: Job) -> Learning:
    """How a job trains its networks."""
    training = job.training
    return Learning(training.preset, training.epochs, training.batch_size, training.learning_rate, training.patience)


def counted(total: int, *, silent: bool) -> Callable[[str], None]:
    """A way to tell of trainings, each with its number; those of an earlier run are not told again."""
    done = iter(range(1, total + 1))

    def tell(words: str) -> None:
        if not silent:
            typer.echo(f"  [{next(done)} of at most {total}] {words}", err=True)

    return tell


def lines_of(ladder: dict[str, Any]) -> Iterator[str]:
    """The sentence, the rungs of both splits side by side, and the gain in three."""
    yield ladder["worth"]
    yield ""
    splits = list(dict.fromkeys(rung["split"] for rung in ladder["rungs"]))
    unit = f" ({ladder['unit']})" if ladder["metric"] == "rmse" else ""
    yield f"{ladder['metric'] + unit:<44}" + "".join(f"{split + ' split':<22}" for split in splits) + "a training"
    for known in RUNGS:
        here = [rung for rung in ladder["rungs"] if rung["key"] == known.key]
        cells = "".join(f"{measure(rung['mean']) + ' ± ' + measure(rung['deviation']):<22}" for rung in here)
        yield f"{known.name:<44}{cells}{duration(max(rung['seconds'] for rung in here))}"
    for split in splits:
        yield ""
        yield f"the gain in parts, {split} split (95 % intervals):"
        yield from (f"  {gain['says']}" for gain in ladder["gains"] if gain["split"] == split)
