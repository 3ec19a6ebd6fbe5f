"""Train the ladder of a job, locally or with remote partners, and report each partner's contribution (``fedsim compare``)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import typer

from fedsim.cli.options import progress_printer
from fedsim.cli.party import load_credentials, measure_traffic, set_up_logging
from fedsim.config.job import Job, read_job
from fedsim.config.party_file import PartyFile, read_party_file
from fedsim.contribution.job_ladder import SPLITS, JobCases, ProtectedTrainer, train_remote_ladder
from fedsim.contribution.ladder import RUNGS, Ladder, LadderTraining, train_ladder
from fedsim.contribution.result_store import PREDICTIONS_FOLDER, RESULTS_FILE, ResultStore
from fedsim.contribution.rungs import Rung, numbered_progress
from fedsim.errors import FileError
from fedsim.protocol.grpc_transport import GrpcTransport
from fedsim.protocol.messages import Role
from fedsim.report.formatting import format_duration, format_number
from fedsim.runs.run_folder import make_private_folder
from fedsim.runtime.party_context import open_party_context, software_versions
from fedsim.runtime.run_store import SECRET_FILE
from fedsim.storage.files import atomic_write
from fedsim.storage.secrets import load_or_create_secret

LADDER_FILE = "ladder.json"


@dataclass(frozen=True)
class CompareOptions:
    """How often, how long, in which unit; and how long to wait for partners elsewhere."""

    seeds: int
    epochs: int | None
    unit: str
    wait: float


def run_compare(job: Path, parties: Sequence[Path], out: Path, asked: CompareOptions, **ways: bool) -> None:
    """Climb the ladder, write it, print it."""
    described, files = read_job(job), [read_party_file(path) for path in parties]
    quiet, as_json = ways["quiet"], ways["as_json"]
    learning = training_settings_of(described)
    rungs = (learning if asked.epochs is None else replace(learning, epochs=asked.epochs)).rungs()
    _restrict_to_owner(out)
    climb = _compare_remotely if [own.role for own in files] == [Role.PRIMARY] else _compare_locally
    ladder = climb(described, files, out, rungs, asked, **ways).described()
    with atomic_write(out / LADDER_FILE) as part:
        part.write_text(json.dumps(ladder, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(ladder, allow_nan=False))
    elif not quiet:
        for line in ladder_lines(ladder):
            typer.echo(line)
        typer.echo(f"written: {out / LADDER_FILE}")


def _restrict_to_owner(out: Path) -> None:
    """Predictions and filters are for the owner's eyes; a folder of other things keeps its permissions."""
    make_private_folder(out, remedy="choose another --out")
    try:
        if (out / LADDER_FILE).exists() or (out / RESULTS_FILE).exists() or not any(out.iterdir()):
            out.chmod(0o700)
        make_private_folder(out / PREDICTIONS_FOLDER)
    except OSError as error:
        reason = error.strerror or "the disk refused"
        raise FileError(f"the folder {out} cannot be made private ({reason}); choose another with --out") from error


def _compare_locally(
    job: Job, files: Sequence[PartyFile], out: Path, rungs: list[Rung], asked: CompareOptions, **ways: bool
) -> Ladder:
    torch.set_num_threads(job.training.threads)
    found = JobCases.read(job, files, out, asked.unit)
    tell = numbered_progress(
        progress_printer(silent=ways["quiet"] or ways["as_json"]), len(SPLITS) * asked.seeds * len(rungs)
    )
    protected = ProtectedTrainer(job.protection, load_or_create_secret(out / SECRET_FILE))
    return train_ladder(found.cases(asked.seeds), rungs, ResultStore(out), tell, protected.trained)


def _compare_remotely(
    job: Job, files: Sequence[PartyFile], out: Path, rungs: list[Rung], asked: CompareOptions, **ways: bool
) -> Ladder:
    (own,) = files
    set_up_logging(own.name, quiet=ways["quiet"], verbose=ways["verbose"])
    possible = [rung for rung in rungs if rung.method != "exact"]
    tell = numbered_progress(progress_printer(silent=ways["quiet"] or ways["as_json"]), asked.seeds * len(possible))
    transport = GrpcTransport(load_credentials(own, ways["insecure"]))
    with (
        measure_traffic(quiet=ways["quiet"] or ways["as_json"]) as count,
        open_party_context(job, own, transport, software_versions()) as post,
    ):
        count.connection = post.connection
        post.connection.wait_seconds = asked.wait
        return train_remote_ladder(post, ResultStore(out), possible, asked.seeds, asked.unit, tell)


def training_settings_of(job: Job) -> LadderTraining:
    """How a job trains its networks."""
    training = job.training
    return LadderTraining(
        training.preset, training.epochs, training.batch_size, training.learning_rate, training.patience
    )


def ladder_lines(ladder: dict[str, Any]) -> Iterator[str]:
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
        cells = "".join(
            f"{format_number(rung['mean']) + ' ± ' + format_number(rung['deviation']):<22}" for rung in here
        )
        yield f"{known.name:<44}{cells}{format_duration(max(rung['seconds'] for rung in here))}"
    for split in splits:
        yield ""
        yield f"the gain in parts, {split} split (95 % intervals):"
        yield from (f"  {gain['says']}" for gain in ladder["gains"] if gain["split"] == split)
