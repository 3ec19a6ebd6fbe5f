"""Attack a job's tables, estimate the partner's contribution, tune (``audit``, ``privacy``, ``compare``, ``tune``)."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from rich.table import Table
from rich.text import Text

from fedsim.attack.finding import MEDIAN_ERROR_METRES, Adversary
from fedsim.audit.report import AuditReport, AuditRow, AuditSettings, Verdict
from fedsim.audit.run import audit_job, prepare_audit, read_audit_tables
from fedsim.cli.options import OutputMode, echo, parse_names
from fedsim.cli.output import (
    as_text,
    print_lines,
    print_renderable,
    print_table,
    progress_bar,
    progress_printer,
    wrap_text,
    write_json,
)
from fedsim.cli.party import measure_traffic, set_up_logging
from fedsim.config import Job, PartyFile, read_job, read_party_file
from fedsim.config.policy import audit_path, stored_audit
from fedsim.config.schema import to_toml
from fedsim.config.toml_file import read_text_file, set_values
from fedsim.contribution.job_ladder import (
    JobCases,
    ladder_splits,
    train_remote_ladder,
    training_settings_of,
)
from fedsim.contribution.ladder import (
    NEEDS_BOTH_TABLES,
    RUNGS,
    Ladder,
    count_trainings,
    train_ladder,
    with_embedding,
)
from fedsim.contribution.rungs import PREDICTIONS_FOLDER, RESULTS_FILE, ResultStore, Rung, numbered_progress
from fedsim.contribution.tuning import JobSubject, Tuner, TuningTrial, propose_grid
from fedsim.errors import FileError, SettingError
from fedsim.privacy.bounds import bayes_success, lowest_bound, sigma_for_bound
from fedsim.privacy.differential_privacy import PAPER_DELTA, gaussian_epsilon, link_sensitivity
from fedsim.protocol.messages import Role
from fedsim.report.audit_page import audit_page
from fedsim.report.formatting import format_duration, format_number, pluralise
from fedsim.report.page import write_page
from fedsim.runs.inputs import InputRecord, require_unchanged
from fedsim.runs.run_folder import ENCODED_FOLDER, make_private_folder
from fedsim.runtime.party_context import open_party_context, open_transport, software_versions
from fedsim.storage.files import atomic_write, check_output_paths, remove_paths

# Audits

VERDICT_LABELS = {Verdict.KEPT: "kept", Verdict.BROKEN: "BROKEN", Verdict.UNTESTED: "untested", Verdict.NONE: "-"}
COLUMNS = ("attack", "success (95 %)", "guessing", "error", "promised", "verdict", "time")


def run_audit(job: Path, parties: Sequence[Path], settings: AuditSettings, out: Path, mode: OutputMode) -> bool:
    """Audit a job, write and print the report; return whether the limit is exceeded or a guarantee broken."""
    files = [read_party_file(path) for path in parties]
    make_private_folder(out.parent, remedy="choose another --out")  # an audit says what is weak
    if not os.access(out.parent, os.W_OK):
        raise FileError(f"cannot write to {out.parent}; choose another --out", code="folder-not-writable")
    settings = replace(settings, memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))  # what is free
    agreed = read_job(job)
    with progress_bar("auditing", hidden=mode.silent) as move:
        report = audit_job(agreed, files, settings, lambda share: move(round(1000 * share), 1000) if move else None)
    page, value = audit_page(report), report.as_dict()  # both are ready before either is written
    write_page(page, out.with_name(f"{out.name}.html"))
    write_json(out.with_name(f"{out.name}.json"), value)
    for own in files:
        if own.data is not None and not (settings.quick and stored_audit(agreed, own)):  # the thorough one stays
            make_private_folder(audit_path(agreed, own).parent)
            write_json(audit_path(agreed, own), value)
    mode.show(value, lambda: _print_audit(report, out))
    return bool(report.over or report.broken)


def _print_audit(report: AuditReport, out: Path) -> None:
    typer.echo(wrap_text("", report.headline))
    print_lines(wrap_text("note: ", note) for note in report.notes)
    typer.echo()
    print_renderable(findings_table(report))
    typer.echo()
    failing = [row for row in report.rows if row.fails(report.limit)]
    print_lines(["what the attacks marked ! mean:"] if failing else [])
    print_lines(_wrap_item(f"{row.found.attack}: {row.explanation}") for row in failing)
    if report.over and not report.advice:
        over = f"{len(report.over)} of {len(report.rows)} attacks gain more than {report.limit:g}"
        typer.echo(f"{over}; no settings were searched")
    print_lines([f"to stay under {report.limit:g}:"] if report.advice else [])
    for advice in report.advice:
        found = f"{advice.setting} ({format_number(advice.leak)}; {advice.cost})" if advice.setting else ""
        text = (found if advice.reached else f"not even {found}") if found else f"no setting found; {advice.cost}"
        echo(_wrap_item(f"{advice.attack}: {text}"))
    print_lines(["not attacked:"] if report.skipped else [])
    print_lines(_wrap_item(f"{skipped.who.value}: {skipped.what} - {skipped.why}") for skipped in report.skipped)
    typer.echo(f"Wrote {out}.html and {out}.json")


def _wrap_item(text: str) -> str:
    return wrap_text("  ", text, hanging=2)


def findings_table(report: AuditReport) -> Table:
    """Return the attacks of each adversary, one secondary after the other."""
    table = Table(*COLUMNS, box=None, pad_edge=False, padding=(0, 1, 0, 0))  # fits into 80 columns
    table.columns[0].min_width = max(len(f"by the {adversary.value}") for adversary in Adversary)
    for adversary in Adversary:
        rows = [row for row in report.rows if row.found.adversary is adversary]
        secondaries = list(dict.fromkeys(row.about for row in rows))
        for about in secondaries:
            links = f", links with {about}" if len(secondaries) > 1 else ""
            table.add_row(Text(f"by the {adversary.value}{links}", style="bold"))
            for row in rows:
                if row.about == about:
                    table.add_row(*map(as_text, _attack_cells(row, report.limit)), style=row_style(row, report.limit))
    return table


def row_style(row: AuditRow, limit: float) -> str:
    """Return the style of an attack in the terminal: red where it fails."""
    return "red" if row.fails(limit) else ""


def _attack_cells(row: AuditRow, limit: float) -> Iterator[str]:
    found = row.found
    yield f"{'!' if row.fails(limit) else ' '} {found.attack}"
    low, high = format_number(found.score.low), format_number(found.score.high)
    yield f"{format_number(found.score.value)} ({low} to {high})"
    yield format_number(found.blind)
    yield f"{found.figures[MEDIAN_ERROR_METRES]:,.0f} m" if MEDIAN_ERROR_METRES in found.figures else ""
    yield "none" if row.guarantee.most is None else f"{row.guarantee.most:.3g}"
    yield VERDICT_LABELS[row.verdict]
    yield format_duration(found.seconds)


def print_privacy_table(
    spread: float | None, taus: str, links: int, tables: tuple[Path | None, Sequence[Path]], mode: OutputMode
) -> None:
    """Print noise and epsilon for every tau; the spread is given, or measured on the tables of a job.

    With tables, a column has the exact success of an attacker who knows how often each of their distances occurs.
    """
    job, parties = tables
    if (spread is None) == (job is None):
        raise SettingError("use either --spread, or --job with --party", code="spread-or-job")
    measured, distance = float(spread or 0.0), None
    if job is not None:
        agreed, settings, files = read_job(job), AuditSettings(), [read_party_file(path) for path in parties]
        read = read_audit_tables(agreed, files, settings.most_records, np.random.default_rng([settings.seed, 0]))
        setup = prepare_audit(agreed, read, next(iter(read.secondaries)), settings)[0]
        measured, distance = setup.linkage.view.known_scale().deviation, setup.linkage.distances()
    try:
        bounds = [float(tau) for tau in parse_names(taus)]
    except ValueError:
        message = "--taus is not a list of numbers separated by commas, such as 0.01,0.001"
        raise SettingError(message, code="invalid-taus") from None
    sensitivity = link_sensitivity(links=links, changed_bits=1, spread=measured)
    rows = []
    for tau in bounds:
        sigma = sigma_for_bound(tau, measured)
        row = {"tau": tau, "sigma": sigma}
        if distance is not None:
            row["bayes"] = bayes_success(sigma, measured, distance)
        row["epsilon"] = gaussian_epsilon(sigma=sigma, delta=PAPER_DELTA, sensitivity=sensitivity)
        rows.append(row)
    lowest = lowest_bound(measured)

    def print_text() -> None:
        typer.echo(f"spread {measured:.6g}; no tau at or below {lowest:.4e} can be guaranteed")
        title = f"epsilon (delta {PAPER_DELTA:g}, {links} links, filters that differ in one bit)"
        forms = {"tau": "g", "sigma": ".6g", "bayes": ".4g", "epsilon": ".4g"}
        cells = [tuple(format(value, forms[name]) for name, value in row.items()) for row in rows]
        print_table(("tau", "sigma", *(("bayes",) if distance is not None else ()), title), cells)
        about = (
            "tau applies to integer Hamming distances; for metres or degrees it would depend on the unit. It assumes "
            "normal similarities and an attacker who assumes them, too; one who knows which distances are frequent "
            "guesses more"
        )
        typer.echo(wrap_text("", f"{about}{'.' if distance is None else ': column bayes, for these tables.'}"))

    mode.show({"spread": measured, "floor": lowest, "delta": PAPER_DELTA, "links": links, "rows": rows}, print_text)


# The partner's contribution

LADDER_FILE, TUNING_FILE, SEARCH_FILE = "ladder.json", "tuning.json", "search.log"
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
    training = training_settings_of(job)
    rungs = (training if options.epochs is None else replace(training, epochs=options.epochs)).rungs()
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
    mode.show(ladder, lambda: _print_ladder(ladder, out / LADDER_FILE))


RESULT_FILES = (RESULTS_FILE, PREDICTIONS_FOLDER, LADDER_FILE, TUNING_FILE, SEARCH_FILE)


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


def _print_ladder(ladder: dict[str, Any], path: Path) -> None:
    """Print the contribution, the methods with all splits side by side, and the parts of the gain."""
    print_lines([wrap_text("", ladder["worth"]), wrap_text("", ladder["parts"]), ""])
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
    for split in splits:
        print_lines(["", f"parts of the gain, {split} split (95 % intervals):"])
        print_lines(_wrap_item(gain["says"]) for gain in ladder["gains"] if gain["split"] == split)
        partners = [partner for partner in ladder["partners"] if partner["split"] == split]
        if partners:
            print_lines(["", f"contribution by secondary, {split} split (95 % intervals):"])
            print_lines(_wrap_item(partner["says"]) for partner in partners)
    typer.echo()
    if ladder["seeds"] > 1:
        typer.echo(f"± standard deviation over {ladder['seeds']} seeds")
    else:
        typer.echo("one seed: the intervals do not include the spread between trainings (--seeds 3)")
    if any(rung["improving"] for rung in ladder["rungs"]):
        typer.echo("* still improving when its epochs ran out")
    typer.echo(f"Wrote {path}")


def _format_score(rung: Mapping[str, Any]) -> str:
    mean, deviation = rung["mean"], rung["deviation"]
    decimals = max(0, SCORE_DIGITS - 1 - math.floor(math.log10(abs(mean) or 1.0)))
    spread = "" if deviation is None else f" ± {deviation:,.{decimals}f}"
    return f"{mean:,.{decimals}f}{spread}{'*' if rung['improving'] else ''}"


# Tuning

AXIS_TYPES: Mapping[str, type[int] | type[float]] = {
    "k": int,
    "rate": float,
    "hidden": int,
    "members": int,
    "batch": int,
}
MAX_SHOWN = 12
MIN_TUNING_RECORDS = 100  # validation records; the error of fewer hardly tells settings apart


@dataclass(frozen=True)
class TuneOptions:
    """Values to try by axis (empty: proposed ones), how often and how long to train, and the file to write."""

    axes: Mapping[str, str]
    search: int
    seeds: int
    epochs: int | None
    write: Path | None
    again: bool = False


def run_tune(job_path: Path, parties: Sequence[Path], out: Path, options: TuneOptions, mode: OutputMode) -> None:
    """Search for the best settings of a job, print them as TOML and write them if requested."""
    job, files = read_job(job_path), [read_party_file(path) for path in parties]
    given = {axis: _parse_axis(axis, listed) for axis, listed in options.axes.items() if listed}
    if options.write:
        check_output_paths([options.write], [job_path, *parties])
    restrict_to_owner(out)
    torch.set_num_threads(job.training.threads)
    subject = JobSubject(job, files, out, options.seeds, options.epochs)
    store = open_results(out, job, files, again=options.again)
    tuner = Tuner(subject, store, progress_printer(silent=mode.silent))
    grid = propose_grid(subject.partners(), subject.records)
    if "k" in given:
        given["k_factor"] = (None,)
    grid = replace(grid, **given)
    ranked = tuner.search(grid, options.search, out / SEARCH_FILE) if options.search else tuner.climb(grid)
    best = ranked[0].setting.job_settings(subject.partners())
    value = {
        "job": job.name,
        "label": ranked[0].label,
        "ranking": [{"setting": trial.setting.named, "validation": trial.validation} for trial in ranked],
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


def _parse_axis(axis: str, listed: str) -> tuple[Any, ...]:
    try:
        values = tuple(AXIS_TYPES[axis](word) for word in parse_names(listed))
    except ValueError:
        values = ()
    if not values:
        message = f"'{listed}' is not a list of numbers separated by commas, such as 5,10; correct it"
        raise SettingError(message, code="invalid-axis", axis=axis)
    return values


def _tuning_warnings(ranked: Sequence[TuningTrial]) -> Iterator[str]:
    records = ranked[0].records
    if records < MIN_TUNING_RECORDS:
        few = f"{pluralise(records, 'validation record')} can hardly tell the settings apart"
        yield f"{few}: a difference may be chance; use at least {MIN_TUNING_RECORDS}, or more --seeds"


def _print_ranking(ranked: Sequence[TuningTrial], settings: str, written: Path | None) -> None:
    metric, label = next(iter(ranked[0].validation)), ranked[0].label
    rows = [(format_number(trial.validation[metric]), trial.setting.describe()) for trial in ranked[:MAX_SHOWN]]
    print_table((f"validation {metric} of {label}", "setting"), rows)
    echo(f"test {metric} of {label} with the best settings: {format_number(ranked[0].test[metric])}\n")
    print_lines(settings.strip().splitlines() or ["The job's own settings are the best."])
    print_lines(wrap_text("warning: ", warning) for warning in _tuning_warnings(ranked))
    if written:
        typer.echo(f"\nWrote {written}")
