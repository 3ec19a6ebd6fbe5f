"""The work behind ``fedsim compare``: the ladder for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import typer

from fedsim.cli.options import telling
from fedsim.cli.party_run import counted, credentials_of, set_up_logging
from fedsim.errors import FileError
from fedsim.experiment.afar import climbed_afar
from fedsim.experiment.job_cases import SPLITS, JobCases
from fedsim.experiment.ladder import RUNGS, Ladder, Learning, climbed
from fedsim.experiment.protected import Protected
from fedsim.experiment.results import LINES, PREDICTIONS, Results
from fedsim.experiment.run import numbered
from fedsim.experiment.rung import Rung
from fedsim.linkage.secret_file import own_secret
from fedsim.linkage.whole_file import whole_file
from fedsim.party.job import Job, read_job
from fedsim.party.party_file import PartyFile, read_party_file
from fedsim.party.post import at_post
from fedsim.party.protecting import SECRET
from fedsim.party.run_folder import private_folder
from fedsim.party.versions import versions_here
from fedsim.protocol.parties import Role
from fedsim.protocol.transport.grpc import GrpcTransport
from fedsim.report.words import duration, measure

FILE = "ladder.json"


@dataclass(frozen=True)
class Asked:
    """How often, how long, in which unit; and how long to wait for partners elsewhere."""

    seeds: int
    epochs: int | None
    unit: str
    wait: float


def compare_and_tell(job: Path, parties: Sequence[Path], out: Path, asked: Asked, **ways: bool) -> None:
    """Climb the ladder, write it, print it."""
    described, files = read_job(job), [read_party_file(path) for path in parties]
    quiet, as_json = ways["quiet"], ways["as_json"]
    learning = learning_of(described)
    rungs = (learning if asked.epochs is None else replace(learning, epochs=asked.epochs)).rungs()
    keep_private(out)
    climb = _climbed_afar if [own.role for own in files] == [Role.PRIMARY] else _climbed_here
    ladder = climb(described, files, out, rungs, asked, **ways).described()
    with whole_file(out / FILE) as part:
        part.write_text(json.dumps(ladder, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(ladder, allow_nan=False))
    elif not quiet:
        for line in lines_of(ladder):
            typer.echo(line)
        typer.echo(f"written: {out / FILE}")


def keep_private(out: Path) -> None:
    """Predictions and filters are for the owner's eyes; a folder of other things keeps its permissions."""
    private_folder(out, remedy="choose another --out")
    try:
        if (out / FILE).exists() or (out / LINES).exists() or not any(out.iterdir()):
            out.chmod(0o700)
        private_folder(out / PREDICTIONS)
    except OSError as error:
        reason = error.strerror or "the disk refused"
        raise FileError(f"the folder {out} cannot be made private ({reason}); choose another with --out") from error


def _climbed_here(
    job: Job, files: Sequence[PartyFile], out: Path, rungs: list[Rung], asked: Asked, **ways: bool
) -> Ladder:
    torch.set_num_threads(job.training.threads)
    found = JobCases.read(job, files, out, asked.unit)
    tell = numbered(telling(silent=ways["quiet"] or ways["as_json"]), len(SPLITS) * asked.seeds * len(rungs))
    protected = Protected(job.protection, own_secret(out / SECRET))
    return climbed(found.cases(asked.seeds), rungs, Results(out), tell, protected.trained)


def _climbed_afar(
    job: Job, files: Sequence[PartyFile], out: Path, rungs: list[Rung], asked: Asked, **ways: bool
) -> Ladder:
    (own,) = files
    set_up_logging(own.name, quiet=ways["quiet"], verbose=ways["verbose"])
    possible = [rung for rung in rungs if rung.method != "exact"]
    tell = numbered(telling(silent=ways["quiet"] or ways["as_json"]), asked.seeds * len(possible))
    transport = GrpcTransport(credentials_of(own, ways["insecure"]))
    with (
        counted(quiet=ways["quiet"] or ways["as_json"]) as count,
        at_post(job, own, transport, versions_here()) as post,
    ):
        count.station = post.station
        post.station.wait_seconds = asked.wait
        return climbed_afar(post, Results(out), possible, asked.seeds, asked.unit, tell)


def learning_of(job: Job) -> Learning:
    """How a job trains its networks."""
    training = job.training
    return Learning(training.preset, training.epochs, training.batch_size, training.learning_rate, training.patience)


def lines_of(ladder: dict[str, Any]) -> Iterator[str]:
    """The sentence, the rungs of both splits side by side, and the gain in three."""
    yield ladder["worth"]
    yield ""
    splits = list(dict.fromkeys(rung["split"] for rung in ladder["rungs"]))
    unit = f" ({ladder['unit']})" if ladder["metric"] == "rmse" else ""
    yield f"{ladder['metric'] + unit:<44}" + "".join(f"{split + ' split':<22}" for split in splits) + "a training"
    for known in RUNGS:
        here = [rung for rung in ladder["rungs"] if rung["key"] == known.key]
        if not here:
            continue
        cells = "".join(f"{measure(rung['mean']) + ' ± ' + measure(rung['deviation']):<22}" for rung in here)
        yield f"{known.name:<44}{cells}{duration(max(rung['seconds'] for rung in here))}"
    for split in splits:
        yield ""
        yield f"the gain in parts, {split} split (95 % intervals):"
        yield from (f"  {gain['says']}" for gain in ladder["gains"] if gain["split"] == split)
