"""Train the ladder of a job, locally or with remote partners, and report it (``fedsim compare``)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import typer

from fedsim.cli.options import OutputMode
from fedsim.cli.output import print_lines, print_table, progress_printer, write_json
from fedsim.cli.party import measure_traffic, set_up_logging
from fedsim.config.job import Job, read_job
from fedsim.config.party_file import PartyFile, read_party_file
from fedsim.contribution.job_ladder import SPLITS, JobCases, ProtectedTrainer, train_remote_ladder
from fedsim.contribution.ladder import RUNGS, Ladder, LadderTraining, train_ladder
from fedsim.contribution.result_store import PREDICTIONS_FOLDER, RESULTS_FILE, ResultStore
from fedsim.contribution.rungs import Rung, numbered_progress
from fedsim.errors import FileError
from fedsim.protocol.messages import Role
from fedsim.report.formatting import format_duration, format_number
from fedsim.runs.run_folder import make_private_folder
from fedsim.runtime.party_context import open_party_context, open_transport, software_versions
from fedsim.runtime.party_data import SECRET_FILE
from fedsim.storage.files import load_or_create_secret

LADDER_FILE = "ladder.json"


@dataclass(frozen=True)
class CompareOptions:
    """How often and how long to train, the unit of the label, and how to reach remote partners."""

    seeds: int
    epochs: int | None
    unit: str
    wait: float
    insecure: bool


def run_compare(job_path: Path, parties: Sequence[Path], out: Path, options: CompareOptions, mode: OutputMode) -> None:
    """Train the ladder, write it and print it."""
    job, files = read_job(job_path), [read_party_file(path) for path in parties]
    training = training_settings_of(job)
    rungs = (training if options.epochs is None else replace(training, epochs=options.epochs)).rungs()
    restrict_to_owner(out)
    is_remote = [own.role for own in files] == [Role.PRIMARY]
    store = ResultStore(out)
    if is_remote:
        result = _compare_remotely(job, files[0], store, rungs, options, mode)
    else:
        torch.set_num_threads(job.training.threads)
        cases = JobCases.read(job, files, out, options.unit).cases(options.seeds)
        progress = numbered_progress(progress_printer(silent=mode.silent), len(SPLITS) * options.seeds * len(rungs))
        protected = ProtectedTrainer(job.protection, load_or_create_secret(out / SECRET_FILE))
        result = train_ladder(cases, rungs, store, progress, protected.train)
    ladder = result.to_dict()
    write_json(out / LADDER_FILE, ladder)
    mode.show(ladder, lambda: _print_ladder(ladder, out / LADDER_FILE))


def restrict_to_owner(out: Path) -> None:
    """Make the folder of predictions private; a folder that also holds other files keeps its permissions."""
    make_private_folder(out, remedy="choose another --out")
    try:
        if (out / LADDER_FILE).exists() or (out / RESULTS_FILE).exists() or not any(out.iterdir()):
            out.chmod(0o700)
        make_private_folder(out / PREDICTIONS_FOLDER)
    except OSError as error:
        message = f"cannot make {out} private ({error.strerror or 'the disk refused'}); choose another --out"
        raise FileError(message, code="folder-not-private") from error


def _compare_remotely(
    job: Job, own: PartyFile, store: ResultStore, rungs: list[Rung], options: CompareOptions, mode: OutputMode
) -> Ladder:
    set_up_logging(own.name, mode)
    possible = [rung for rung in rungs if rung.method != "exact"]
    progress = numbered_progress(progress_printer(silent=mode.silent), options.seeds * len(possible))
    transport = open_transport(own, insecure=options.insecure)
    with (
        measure_traffic(quiet=mode.silent) as traffic,
        open_party_context(job, own, transport, software_versions()) as context,
    ):
        traffic.connection = context.connection
        context.connection.wait_seconds = options.wait
        return train_remote_ladder(context, store, possible, options.seeds, options.unit, progress)


def training_settings_of(job: Job) -> LadderTraining:
    """Return how a job trains its networks."""
    own = job.training
    return LadderTraining(own.preset, own.epochs, own.batch_size, own.learning_rate, own.patience)


def _print_ladder(ladder: dict[str, Any], path: Path) -> None:
    """Print the contribution, the methods with both splits side by side, and the parts of the gain."""
    print_lines([ladder["worth"], ""])
    splits = list(dict.fromkeys(rung["split"] for rung in ladder["rungs"]))
    unit = f" ({ladder['unit']})" if ladder["metric"] == "rmse" else ""
    rows = []
    for known in RUNGS:
        here = [rung for rung in ladder["rungs"] if rung["key"] == known.key]
        if here:
            cells = [f"{format_number(rung['mean'])} ± {format_number(rung['deviation'])}" for rung in here]
            rows.append((known.name, *cells, format_duration(max(rung["seconds"] for rung in here))))
    print_table((f"{ladder['metric']}{unit}", *(f"{split} split" for split in splits), "time per training"), rows)
    for split in splits:
        print_lines(["", f"parts of the gain, {split} split (95 % intervals):"])
        print_lines(f"  {gain['says']}" for gain in ladder["gains"] if gain["split"] == split)
    typer.echo(f"Wrote {path}")
