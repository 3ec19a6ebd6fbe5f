"""Estimate in one command what a partner's table adds to one's own (``fedsim try``).

The job is what ``fedsim init`` proposes, and the comparison is the ladder of ``fedsim compare`` in this process,
reduced to what fits into the time. Nothing is sent, so there are no certificates and no approvals.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsim.cli.evaluation import open_results
from fedsim.cli.init import JOB_FILE, InitRequest, format_line, run_init
from fedsim.cli.options import OutputMode, echo, print_nothing
from fedsim.cli.output import ProgressCallback, print_lines, progress_bar, progress_printer, wrap_text, write_json
from fedsim.config import Job, PartyFile, read_job, read_party_file
from fedsim.contribution import trial
from fedsim.contribution.job_ladder import JobCases
from fedsim.contribution.ladder import TOGETHER, Ladder, train_ladder, with_embedding, with_settings
from fedsim.contribution.rungs import STACKED, ResultStore, Rung, RungOutcome, SplitArrays, run_training
from fedsim.contribution.trial import TrialPlan
from fedsim.errors import FileError, InputError, SettingError
from fedsim.hyperparameters import TrainingSettings
from fedsim.pipeline.party_table import PartyData
from fedsim.preflight.estimate import Workload, build_workload
from fedsim.report.comparison_page import write_comparison_page
from fedsim.report.formatting import format_duration, format_number, format_percent, pluralise
from fedsim.report.model_charts import SIDE_NAMES, density_figure
from fedsim.report.page import PageSection, PageTable
from fedsim.report.run_data import LADDER_FILE, REPORT_FILE
from fedsim.runs.run_folder import make_private_folder
from fedsim.training import Hook
from fedsim.training.loop import TrainingOutline

MARKER_FILE, COMPARE_FOLDER = ".fedsim-try", "compare"
SMALL_RECORDS, SMALL_MINUTES, USUAL_MINUTES = 2_000, 0.8, 4.0  # default budgets, by the size of the tables
LINK_SHARE, TOKEN_SECONDS = 0.4, 1.5e-5  # of the budget for the linkage; of a token, measured on one core
COUNTED_RECORDS = 300  # of a table, for its tokens
TREE_SHARE = 0.15  # of what is left, for trees and the page
MAX_UNLINKED = 0.5
NOT_FOUND = (
    "Perhaps the tables do not describe the same things, these columns do not link them, or this comparison is too "
    "short to see a small contribution."
)
SAMPLED = "Only a sample of the partner's records was linked, so the contribution of all may be larger."


def run_try(request: InitRequest, out: Path, minutes: float | None, mode: OutputMode) -> None:
    """Propose a job, link, train what fits into the time, print the contribution and write a page."""
    started = time.perf_counter()
    say = print_nothing if mode.silent else echo
    _refuse_one_table(request)
    summary = run_init(request, _create_folder(out), force=True, say=print_nothing)
    job = read_job(out / JOB_FILE)
    files = [read_party_file(out / f"{name}.toml") for name in summary["parties"].values()]
    cases = JobCases.read(job, files, out / COMPARE_FOLDER, "")
    (partner,) = cases.secondaries.values()
    _refuse_copy(cases.primary, partner)
    is_small = len(cases.primary) <= SMALL_RECORDS and len(partner) <= 5 * SMALL_RECORDS
    minutes = minutes or (SMALL_MINUTES if is_small else USUAL_MINUTES)
    budget = 60 * minutes
    for line in _proposal_lines(summary, cases):
        say(line)
    records = len(cases.primary)
    cases, sampled = _sample_tables(cases, budget)
    say(format_line("time", f"about {minutes:g} min at most; --minutes sets it"))
    torch.set_num_threads(job.training.threads)
    began = time.perf_counter()
    arrays = next(iter(cases.cases(1, (job.task.split,))))
    say(format_line("link", f"{_describe_links(arrays)} ({format_duration(time.perf_counter() - began)})"))
    store = open_results(out / COMPARE_FOLDER, job, files, again=False)
    work = _workload(cases)
    rungs = _rungs(job, job.training.settings)
    speed = trial.measure_speed(work, next(rung for rung in rungs if rung.key == STACKED).components[0], arrays)
    full = trial.full_plan(work, job.training.patience)
    left = (budget - (time.perf_counter() - started)) * (1 - TREE_SHARE)
    plan = trial.choose_plan(work, full, left, speed)
    full = replace(full, records=records)
    reduced = [*sampled, *plan.reductions(full)]
    say(format_line("train", f"{plan}; about {format_duration(trial.plan_seconds(work, plan, speed))}"))
    if reduced:
        say(format_line("reduced", f"{', '.join(reduced)}, to fit into the time; a job trains all"))
    ladder = _train(cases, plan, work, speed, _rungs(job, plan.settings(job.training.settings)), store, mode)
    value = ladder.to_dict()
    write_json(out / COMPARE_FOLDER / LADDER_FILE, value)
    warnings = [*summary["warnings"], *_link_warnings(arrays), *([SAMPLED] if sampled else [])]
    warnings += [NOT_FOUND] if _is_unclear(value) else []
    command = _next_command(request, out, minutes)
    page = write_comparison_page(
        out / COMPARE_FOLDER,
        page=out / REPORT_FILE,
        title=f"{job.primary.name} with {partner.own.name}",
        lead=_lead(cases, summary, reduced),
        warnings=warnings,
        hint="A short comparison is a first look. With more time:",
        command=command,
        sections=[*_prediction_sections(ladder, str(value["unit"])), _plan_section(summary, plan, full, sampled)],
    )
    seconds = time.perf_counter() - started
    result = {"folder": str(out), "report": str(page), "seconds": seconds, "plan": asdict(plan), "reduced": reduced}
    result |= {"proposal": summary, "warnings": warnings, "ladder": value}
    mode.show(result, lambda: print_lines(_result_lines(value, warnings, page, command, files, seconds)))


def _refuse_one_table(request: InitRequest) -> None:
    paths = [Path(table) for table in request.tables.values() if table]
    if len({path.absolute().resolve() for path in paths}) < len(paths):
        message = f"both tables are {paths[0]}; the second one must be the partner's table"
        raise SettingError(message, code="same-table")


def _refuse_copy(primary: PartyData, partner: PartyData) -> None:
    if primary.frame.equals(partner.frame):
        message = (
            f"{partner.source} has the same content as {primary.source}; the second one must be the partner's table"
        )
        raise InputError(message, code="same-table")


def _create_folder(out: Path) -> Path:
    """Create an empty folder; an earlier trial in it is removed, anything else is an error."""
    try:
        if (out / MARKER_FILE).is_file():
            shutil.rmtree(out)
        make_private_folder(out, remedy="choose another --out")
        if any(out.iterdir()):
            message = f"the folder {out} is not empty and contains no earlier trial; choose another with --out"
            raise FileError(message, code="folder-not-empty")
        (out / MARKER_FILE).touch()
    except OSError as error:
        message = f"cannot create the folder {out} ({error.strerror}); choose another with --out"
        raise FileError(message, code="folder-not-writable") from error
    return out


def _proposal_lines(summary: dict[str, Any], cases: JobCases) -> list[str]:
    """Return what was read and guessed."""
    (partner,) = cases.secondaries.values()
    lines = [
        format_line(
            party.own.name, f"{pluralise(len(party), 'record')}, features {', '.join(party.columns.features or ())}"
        )
        for party in (cases.primary, partner)
    ]
    pairs = [" = ".join(dict.fromkeys((pair["primary"], pair["secondary"]))) for pair in summary["link_by"]]
    lines.append(format_line("link by", f"{', '.join(pairs)} ({summary['k']} partner records per record)"))
    lines.append(format_line("predict", f"{summary['label']} ({summary['task']}, {summary['split']} split)"))
    return [*lines, *(format_line("warning", warning) for warning in summary["warnings"])]


def _workload(cases: JobCases) -> Workload:
    """Return the sizes of the job with the tables at hand."""
    tables = {cases.primary.own.name: cases.primary, **cases.secondaries}
    columns = {name: len(table.columns.features or ()) for name, table in tables.items()}
    return build_workload(cases.job, {name: len(table) for name, table in tables.items()}, columns)


def _sample_tables(cases: JobCases, budget: float) -> tuple[JobCases, list[str]]:
    """Return the tables, or a sample of each where the linkage of all records would take too much of the time."""
    (name,) = cases.secondaries
    needed = TOKEN_SECONDS * sum(_count_tokens(table, name) for table in (cases.primary, *cases.secondaries.values()))
    share = LINK_SHARE * budget / max(needed, 1.0)
    if share >= 1:
        return cases, []
    rng = np.random.default_rng(cases.job.seed)

    def sample(table: PartyData) -> PartyData:
        size = max(min(trial.MIN_RECORDS, len(table)), round(share * len(table)))
        return table.take(np.sort(rng.permutation(len(table))[:size]))

    partner = cases.secondaries[name]
    sampled = replace(cases, primary=sample(cases.primary), secondaries={name: sample(partner)})
    return sampled, [f"{len(sampled.secondaries[name]):,} of {len(partner):,} records of {name}"]


def _count_tokens(table: PartyData, secondary: str) -> float:
    """Return about how many tokens the identifiers of a table have, from those of its first records."""
    some = table.take(np.arange(min(len(table), COUNTED_RECORDS)))
    schema = table.job.secondaries[secondary].token_schema
    counts = (len(field.tokens.token) for field in schema.row_tokens(some.token_identifiers(secondary)))
    return sum(counts) * len(table) / len(some)


def _describe_links(arrays: SplitArrays) -> str:
    (linked,) = arrays.secondaries
    return f"{format_percent(1 - linked.unlinked)} of the records reach a record of {linked.name}"


def _link_warnings(arrays: SplitArrays) -> list[str]:
    (linked,) = arrays.secondaries
    if linked.unlinked <= MAX_UNLINKED:
        return []
    few = f"{format_percent(linked.unlinked)} of the records have no similar record in {linked.name}"
    return [f"{few}; check that both tables are about the same things, or name other columns with --on"]


def _rungs(job: Job, settings: TrainingSettings) -> list[Rung]:
    rungs = with_settings(settings, trial.TRIAL_RUNGS)
    return with_embedding(rungs) if job.sends_embedding else rungs


def _train(
    cases: JobCases,
    plan: TrialPlan,
    work: Workload,
    speed: float,
    rungs: Sequence[Rung],
    store: ResultStore,
    mode: OutputMode,
) -> Ladder:
    """Train the ladder of the plan and show how far it is."""
    rng = np.random.default_rng(cases.job.seed)
    arrays = [trial.sample_split(each, plan.records, rng) for each in cases.cases(plan.seeds, (cases.job.task.split,))]
    with progress_bar("train", hidden=mode.silent) as move:
        progress = TrialProgress(trial.plan_seconds(work, plan, speed), plan, move)
        report = progress_printer(silent=mode.silent or move is not None)
        return train_ladder(
            arrays, rungs, store, lambda line: report(progress.line(line)), progress.train, lengthen=False
        )


@dataclass(eq=False)
class TrialProgress(Hook):
    """Moves a bar over the predicted seconds of all networks, each of which may stop early; trees count nothing."""

    total: float
    plan: TrialPlan
    move: ProgressCallback | None
    done: float = 0.0
    began: float = field(default_factory=time.perf_counter)
    _share: float = 0.0
    _steps: float = 1.0

    def train(self, rung: Rung, arrays: SplitArrays) -> RungOutcome:
        """Train one rung."""
        units = trial.LARGE_NETWORKS + trial.SMALL_NETWORKS * trial.SMALL_COST
        cost = trial.SMALL_COST if rung.needs_no_partner else 1.0
        self._share = self.total / self.plan.seeds * cost / units if rung.trains_network else 0.0
        outcome = run_training(rung, arrays, [self])
        self.done += self._share
        return outcome

    def started(self, outline: TrainingOutline) -> None:
        self._steps = trial.USUAL_SHARE * outline.epochs * outline.steps_per_epoch

    def stepped(self, step: int) -> None:
        if self.move:
            self.move(round(self.done + self._share * min(1.0, (step + 1) / self._steps)), max(1, round(self.total)))

    def line(self, text: str) -> str:
        """Return a line of a log with the time left, as far as the pace so far tells."""
        if not 0 < self.done < self.total:
            return text
        left = (time.perf_counter() - self.began) * (self.total - self.done) / self.done
        return f"{text} (about {format_duration(left)} left)"


def _is_unclear(ladder: dict[str, Any]) -> bool:
    """Return whether the interval of the contribution includes zero, or the partner makes predictions worse."""
    return bool(next(gain for gain in ladder["gains"] if gain["key"] == "contribution")["low"] <= 0)


def _lead(cases: JobCases, summary: dict[str, Any], reduced: Sequence[str]) -> str:
    (partner,) = cases.secondaries.values()
    columns = ", ".join(dict.fromkeys(pair["primary"] for pair in summary["link_by"]))
    lead = f"{pluralise(len(cases.primary), 'record')} of {cases.primary.own.name}, each linked by {columns} to the "
    lead += f"{summary['k']} most similar of {pluralise(len(partner), 'record')} of {partner.own.name}, predict "
    lead += f"{summary['label']}. Both tables were read in one process; nothing was sent."
    return lead + (f" Reduced to fit into the time: {', '.join(reduced)}." if reduced else "")


def _prediction_sections(ladder: Ladder, unit: str) -> list[PageSection]:
    """Return the predictions with the partner against actual values, for numbers."""
    found = ladder.seeds[ladder.headline_split][0]
    if ladder.measure.name != "rmse":
        return []
    figure = density_figure(found.labels.astype(np.float64), found.predictions[TOGETHER].astype(np.float64), unit=unit)
    return [PageSection("predictions", "Predictions with the partner", (), (figure,))] if figure else []


def _plan_section(summary: dict[str, Any], plan: TrialPlan, full: TrialPlan, sampled: Sequence[str]) -> PageSection:
    """Return what was guessed and how much was trained."""
    rows = [(" = ".join((one["primary"], one["secondary"])), f"linked as {one['kind']}") for one in summary["link_by"]]
    rows += [(summary["label"], f"predicted, {summary['task']}, {summary['split']} split")]
    rows += [(summary["parties"][key], f"learns from {', '.join(names)}") for key, names in summary["features"].items()]
    rows += [(name, f"left out: {reason}") for out in summary["left_out"].values() for name, reason in out.items()]
    guessed = PageTable("What was guessed", ("column", "use"), tuple(rows), "Change it with --on, --label and --task.")
    sizes = [(name, f"{getattr(plan, name):,}", f"{getattr(full, name):,}") for name in asdict(full)]
    note = "; ".join(sampled)
    trained = PageTable("How much was trained", ("", "here", "in a job"), tuple(sizes), note)
    return PageSection("plan", "What was done", (), (), (guessed, trained))


def _next_command(request: InitRequest, out: Path, minutes: float) -> str:
    """Return the same command with four times the time."""
    given = {"--on": ",".join(request.on), "--on-secondary": ",".join(request.on_secondary), "--label": request.label}
    options = [word for name, value in given.items() if value for word in (name, value)]
    tables = [table for table in request.tables.values() if table]
    words = ["fedsim", "try", *tables, *options, "--minutes", f"{max(1, round(4 * minutes))}", "--out", str(out)]
    return shlex.join(words)


def _result_lines(
    ladder: dict[str, Any],
    warnings: Sequence[str],
    page: Path,
    command: str,
    files: Sequence[PartyFile],
    seconds: float,
) -> list[str]:
    sides = [
        f"  {SIDE_NAMES[side['key']]:<20}{format_number(side['estimate']):>10}  "
        f"({format_number(side['low'])} to {format_number(side['high'])})"
        for side in ladder["sides"]
    ]
    names = " ".join(f"{file.name}.toml" for file in files)
    return [
        f"\nTest {ladder['metric']} of {ladder['unit']}, 95 % interval, {ladder['records']:,} test records:",
        *sides,
        "",
        wrap_text("", ladder["headline"]),
        *(wrap_text("warning: ", warning) for warning in [*ladder["caveats"], *warnings]),
        "",
        f"Done in {format_duration(seconds)}. Next:",
        f"  report:    {page}",
        f"  longer:    {command}",
        f"  thorough:  cd {shlex.quote(str(page.parent))} && fedsim compare {JOB_FILE} {names}",
        "  for real:  fedsim init, then each owner approves: fedsim approve, fedsim party",
    ]
