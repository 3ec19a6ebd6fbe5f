"""Attack a job's tables, estimate the partner's contribution, tune (``audit``, ``privacy``, ``compare``, ``tune``)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import typer

from fedsim.cli.options import OutputMode, echo
from fedsim.cli.output import (
    print_lines,
    print_table,
    progress_printer,
    wrap_text,
    write_json,
)
from fedsim.cli.party import measure_traffic, set_up_logging
from fedsim.config import Job, PartyFile, read_job, read_party_file
from fedsim.config.settings_schema import to_toml
from fedsim.config.toml_file import read_text_file, set_values
from fedsim.contribution.job_ladder import (
    JobCases,
    ladder_splits,
    train_remote_ladder,
)
from fedsim.contribution.ladder import (
    NEEDS_BOTH_TABLES,
    RUNGS,
    STEP_NAMES,
    Ladder,
    count_trainings,
    train_ladder,
    with_embedding,
    with_settings,
)
from fedsim.contribution.rungs import PREDICTIONS_FOLDER, RESULTS_FILE, ResultStore, Rung, numbered_progress
from fedsim.contribution.tuning import JobSubject, Tuner, TuningTrial, describe_setting, parse_values, tuned_types
from fedsim.errors import FileError
from fedsim.protocol.messages import Role
from fedsim.report.comparison_page import write_comparison_page
from fedsim.report.formatting import format_duration, format_number, pluralise
from fedsim.runs.input_record import InputRecord, require_unchanged
from fedsim.runs.run_folder import ENCODED_FOLDER, make_private_folder
from fedsim.runtime.party_context import open_party_context, open_transport, software_versions
from fedsim.storage.files import atomic_write, check_output_paths, remove_paths

# The partner's contribution

LADDER_FILE, TUNING_FILE = "ladder.json", "tuning.json"
SCORE_DIGITS = 4  # of a score, whose deviation has as many decimals


@dataclass(frozen=True)
class CompareOptions:
    """How often and how long to train, the unit of the label, how to reach remote partners, whether to start anew."""

    seeds: int
    epochs: int | None
    unit: str
    wait: float
    insecure: bool
    again: bool = False


def run_compare(job_path: Path, parties: Sequence[Path], out: Path, options: CompareOptions, mode: OutputMode) -> None:
    """Train the ladder, write it and print it."""
    job, files = read_job(job_path), [read_party_file(path) for path in parties]
    given: dict[str, Any] = {} if options.epochs is None else {"epochs": options.epochs}
    rungs = with_settings(replace(job.training.settings, **given))
    restrict_to_owner(out)
    is_remote = [own.role for own in files] == [Role.PRIMARY]
    rungs = with_embedding(rungs) if job.sends_embedding else rungs
    store = open_results(out, job, files, again=options.again)
    if is_remote:
        result = _compare_remotely(job, files[0], store, rungs, options, mode)
    else:
        torch.set_num_threads(job.training.threads)
        cases = JobCases.read(job, files, out, options.unit).cases(options.seeds)
        total = len(ladder_splits(job)) * options.seeds * count_trainings(rungs, job.secondaries)
        progress = numbered_progress(progress_printer(silent=mode.silent), total)
        result = train_ladder(cases, rungs, store, progress, tell_apart=True)
    ladder = result.to_dict()
    write_json(out / LADDER_FILE, ladder)
    partners, linked = ", ".join(job.secondaries), "at their own sites" if is_remote else "in this process"
    lead = f"{job.primary.name} predicts {ladder['unit']}, alone and with {partners}, whose tables are {linked}."
    page = write_comparison_page(out, title=f"{job.name}: what {partners} adds", lead=lead)
    mode.show(ladder, lambda: _print_ladder(ladder, (out / LADDER_FILE, page)))


RESULT_FILES = (RESULTS_FILE, PREDICTIONS_FOLDER, LADDER_FILE, TUNING_FILE)


def open_results(out: Path, job: Job, files: Sequence[PartyFile], *, again: bool) -> ResultStore:
    """Return the results in a folder, which must be of the inputs at hand, or none if they are to be made ``again``."""
    if again:
        remove_paths([out / name for name in (*RESULT_FILES, *(f"{own.name}/{ENCODED_FOLDER}" for own in files))])
    store, recorded = ResultStore(out), InputRecord(out / f"inputs-{job.short_hash}.json")
    if store.lines:
        changes = recorded.changes(job, files)
        hint = "make them again with --again, or choose another --out"
        require_unchanged(f"the results in {out} were made with", changes, hint=hint)
    recorded.save(recorded.read(job, files))
    return store


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
    set_up_logging(own.name, mode, job=job.hash, logs=own.telemetry.logs)
    possible = [rung for rung in rungs if rung.key not in NEEDS_BOTH_TABLES]
    total = options.seeds * count_trainings(possible, job.secondaries, lengthen=job.protection.sealed)
    progress = numbered_progress(progress_printer(silent=mode.silent), total)
    transport = open_transport(own, insecure=options.insecure)
    with (
        measure_traffic(quiet=mode.silent) as traffic,
        open_party_context(job, own, transport, software_versions()) as context,
    ):
        traffic.connection = context.connection
        context.connection.wait_seconds = options.wait
        return train_remote_ladder(context, store, possible, options.seeds, options.unit, progress)


def _print_ladder(ladder: dict[str, Any], written: Sequence[Path]) -> None:
    """Print the contribution, and the methods and the parts of the gain with all splits side by side."""
    print_lines([wrap_text("", ladder["worth"]), wrap_text("", ladder["models"]), ""])
    splits = list(dict.fromkeys([ladder["split"], *(rung["split"] for rung in ladder["rungs"])]))
    unit = f" ({ladder['unit']})" if ladder["metric"] == "rmse" else ""
    rows = []
    for known in RUNGS:
        found = {rung["split"]: rung for rung in ladder["rungs"] if rung["key"] == known.key}
        here = [found[split] for split in splits if split in found]
        if here:
            cells = [_format_score(rung) for rung in here]
            rows.append((known.name, *cells, format_duration(max(rung["seconds"] for rung in here))))
    print_table((f"{ladder['metric']}{unit}", *(f"{split} split" for split in splits), "time"), rows)
    typer.echo()
    steps = [(STEP_NAMES[gain["key"]], gain) for gain in ladder["gains"]]
    for partner in ladder["partners"]:
        of_features = {**partner["features"], "split": partner["split"]}
        steps += [(partner["secondary"], partner), (f"{partner['secondary']}, features beyond links", of_features)]
    rows = []
    for name in dict.fromkeys(name for name, _ in steps):
        found = {gain["split"]: gain for step, gain in steps if step == name}
        rows.append((name, *(_format_gain(found[split]) for split in splits)))
    print_table(("gain, 95 % interval", *(f"{split} split" for split in splits)), rows)
    typer.echo()
    if ladder["seeds"] > 1:
        typer.echo(f"± standard deviation over {ladder['seeds']} seeds")
    else:
        typer.echo("one seed: the intervals do not include the spread between trainings (--seeds 3)")
    if any(rung["improving"] for rung in ladder["rungs"]):
        typer.echo("* still improving when its epochs ran out")
    typer.echo(f"Wrote {' and '.join(map(str, written))}")


def _format_gain(gain: Mapping[str, Any]) -> str:
    low, high = format_number(gain["low"]), format_number(gain["high"])
    return f"{format_number(gain['estimate'])} ({low} to {high})"


def _format_score(rung: Mapping[str, Any]) -> str:
    mean, deviation = rung["mean"], rung["deviation"]
    decimals = max(0, SCORE_DIGITS - 1 - math.floor(math.log10(abs(mean) or 1.0)))
    spread = "" if deviation is None else f" ± {deviation:,.{decimals}f}"
    return f"{mean:,.{decimals}f}{spread}{'*' if rung['improving'] else ''}"


# Tuning

MAX_SHOWN = 12
MIN_TUNING_RECORDS = 100  # validation records; the error of fewer hardly tells settings apart


@dataclass(frozen=True)
class TuneOptions:
    """Values to try (else proposed ones), how often and how long to train, and the file to write."""

    values: Sequence[str]
    seeds: int
    epochs: int | None
    write: Path | None
    again: bool = False


def run_tune(job_path: Path, parties: Sequence[Path], out: Path, options: TuneOptions, mode: OutputMode) -> None:
    """Search for the best settings of a job, print them as TOML and write them if requested."""
    job, files = read_job(job_path), [read_party_file(path) for path in parties]
    given = parse_values(options.values, tuned_types())
    if options.write:
        check_output_paths([options.write], [job_path, *parties])
    restrict_to_owner(out)
    torch.set_num_threads(job.training.threads)
    subject = JobSubject(job, files, out, options.seeds, options.epochs)
    store = open_results(out, job, files, again=options.again)
    ranked = Tuner(subject, store, progress_printer(silent=mode.silent)).tune(subject.grid(given))
    best = subject.job_settings(ranked[0].setting)
    value = {
        "job": job.name,
        "label": ranked[0].label,
        "ranking": [{"setting": trial.setting, "validation": trial.validation} for trial in ranked],
        "best": {".".join(path): setting for path, setting in best.items()},
        "best_test": ranked[0].test,
        "validation_records": ranked[0].records,
        "warnings": list(_tuning_warnings(ranked)),
    }
    write_json(out / TUNING_FILE, value)
    values = {path: to_toml(setting) for path, setting in best.items()}
    if options.write:
        text = set_values(read_text_file(job_path), values)
        with atomic_write(options.write) as part:
            part.write_text(text, encoding="utf-8")
        read_job(options.write)
    mode.show(value, lambda: _print_ranking(ranked, set_values("", values), options.write))


def _tuning_warnings(ranked: Sequence[TuningTrial]) -> Iterator[str]:
    records = ranked[0].records
    if records < MIN_TUNING_RECORDS:
        few = f"{pluralise(records, 'validation record')} can hardly tell the settings apart"
        yield f"{few}: a difference may be chance; use at least {MIN_TUNING_RECORDS}, or more --seeds"


def _print_ranking(ranked: Sequence[TuningTrial], settings: str, written: Path | None) -> None:
    metric, label = next(iter(ranked[0].validation)), ranked[0].label
    rows = [(format_number(trial.validation[metric]), describe_setting(trial.setting)) for trial in ranked[:MAX_SHOWN]]
    print_table((f"validation {metric} of {label}", "setting"), rows)
    echo(f"test {metric} of {label} with the best settings: {format_number(ranked[0].test[metric])}\n")
    print_lines(settings.strip().splitlines() or ["The job's own settings are the best."])
    print_lines(wrap_text("warning: ", warning) for warning in _tuning_warnings(ranked))
    if written:
        typer.echo(f"\nWrote {written}")
