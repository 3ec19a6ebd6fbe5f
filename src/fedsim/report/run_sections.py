"""The sections of a run report, built from the run folder."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Iterator

import numpy as np

from fedsim.config.disclosure import describe_noise, summarise_settings
from fedsim.config.job import CutTerms, Job
from fedsim.protocol.messages import LedgerEntry
from fedsim.report.charts import (
    AttackScore,
    AxisLabels,
    ChartLabels,
    ChartRow,
    attack_scores_figure,
    bar_rows_figure,
    lines_figure,
)
from fedsim.report.distribution_charts import histogram_figure
from fedsim.report.formatting import format_bytes, format_count, format_duration, format_number, pluralise
from fedsim.report.gates_page import importance_figure, weight_figure
from fedsim.report.ladder import LadderResults, RungResult, ladder_figures
from fedsim.report.page import Figure, PageSection, PageTable
from fedsim.report.prediction_charts import (
    calibration_figure,
    calibration_warnings,
    confusion_figure,
    density_figure,
    group_figures,
    threshold_figure,
)
from fedsim.report.run_data import FinishedRun
from fedsim.report.run_links import ReportOptions, links_section
from fedsim.runs.record import PREDICTED_COLUMN, TRUTH_COLUMN
from fedsim.training.explain import MergeImportance, WeightCurve

# What the partner is worth, and how the ladder's figures and those of the run's own model hang together


OWN_IDENTIFIERS_SUFFIX = "-identifiers"  # ends the key of a rung that learns from the primary's own identifiers as well


def contribution_section(run: FinishedRun) -> PageSection:
    """The ladder with its words; empty where nobody compared."""
    if run.ladder is None:
        return PageSection("worth", "What the partner is worth")
    words = (_ladder_note(run.ladder), *_run_versus_ladder(run, run.ladder))
    return PageSection("worth", "What the partner is worth", words, tuple(ladder_figures(run.ladder)))


def _ladder_note(ladder: LadderResults) -> str:
    seeds = f"{ladder.seeds} seeds" if ladder.seeds > 1 else "one seed"
    return f"Trained anew for every rung with {seeds} and judged on {pluralise(ladder.records, 'test record')} each."


def _run_versus_ladder(run: FinishedRun, ladder: LadderResults) -> Iterator[str]:
    """Why the figures in the headline, on the ladder and of this run's model are not the same."""
    part, metrics = run.record.judged
    rung = _matching_rung(run, ladder)
    if rung is None or ladder.metric not in metrics:
        return
    yield (
        f"The model of this run is another training than any rung: its {part} {ladder.metric} is "
        f"{format_number(metrics[ladder.metric])}. Hold it against the rung {rung.name}, {_rung_score(run, ladder, rung)}. "
        "Starting weights and the draw of the noise differ, and epochs where the comparison was given its own."
    )


def _matching_rung(run: FinishedRun, ladder: LadderResults) -> RungResult | None:
    """The rung that trains as this run did, under the split of its job."""
    linking = {column for terms in run.job.secondaries.values() for column in terms.encoding.columns}
    key = run.record.method + (OWN_IDENTIFIERS_SUFFIX if linking & set(run.record.table.features) else "")
    return next((rung for rung in ladder.rungs if (rung.key, rung.split) == (key, run.job.task.split)), None)


def _rung_score(run: FinishedRun, ladder: LadderResults, rung: RungResult) -> str:
    """The rung's figure; a ladder that knows the job's hash was judged by the run's test records first."""
    same = ladder.hash == run.record.hash
    if ladder.seeds == 1:
        return f"{format_number(rung.mean)} on {'the same' if same else 'other'} test records ({rung.split} split)"
    first = f"; {format_number(rung.values[0])} with the first seed, on the same test records" if same else ""
    return f"{format_number(rung.mean)} over {ladder.seeds} seeds ({rung.split} split{first})"


# Who saw what in a job: the table of the design, with what this job protects in it


NOT_SEEN = "–"
ROLE_COLUMNS = ("", "primary", "each secondary", "coordinator")


def visibility_table(job: Job) -> PageTable:
    """One line per kind of information, one column per role."""
    cut = job.protection
    hidden = any(terms.hide_rows for terms in job.secondaries.values())
    rows = "row numbers that never repeat" if hidden else "pseudonymous row numbers"
    return PageTable(
        "What each role saw",
        ROLE_COLUMNS,
        (
            ("identifiers of the primary", "its own", NOT_SEEN, "encoded, without the key"),
            ("identifiers of a secondary", NOT_SEEN, "its own", "encoded, without the key"),
            ("features of the primary", "its own", NOT_SEEN, NOT_SEEN),
            ("features of a secondary", NOT_SEEN, "its own", NOT_SEEN),
            ("labels", "its own", NOT_SEEN, NOT_SEEN),
            ("distances", NOT_SEEN, NOT_SEEN, "all it measured"),
            ("similarities", _similarity_noise(job), NOT_SEEN, "before noise"),
            ("which partners a record has", rows, "the rows asked for", "all"),
            ("activations at the cut", _cut_protection(cut.activations), "its own", NOT_SEEN),
            ("gradients at the cut", "its own", _cut_protection(cut.gradients), NOT_SEEN),
        ),
    )


def _similarity_noise(job: Job) -> str:
    words = {name: describe_noise(terms) for name, terms in job.secondaries.items()}
    if len(set(words.values())) == 1:
        return next(iter(words.values()))
    return "; ".join(f"{name}: {said}" for name, said in words.items())


def _cut_protection(terms: CutTerms | None) -> str:
    return "as they are" if terms is None else f"clipped at {terms.clip:g}, noise {terms.noise:g} times that"


# The parts of a run's report, each from what the run folder holds


MAX_MESSAGE_KINDS = 6
NOT_MEASURED = "What the partner is worth has not been measured yet."
COMPARE_HINT = (
    "One good test score does not show it: the primary's own identifiers may tell as much. This trains the primary "
    "alone, with the partner, and with partners that cannot help, and tells the difference with its interval:"
)
NO_AUDIT = "No attack was tried on this job."


def run_sections(run: FinishedRun, wishes: ReportOptions) -> list[PageSection]:
    """All parts, the answer first."""
    return [
        contribution_section(run),
        links_section(run, wishes),
        _learning_section(run),
        *_gate_sections(run),
        _predictions_section(run),
        _privacy_section(run),
        _cost_section(run),
        _settings_section(run),
    ]


def contribution_unknown(run: FinishedRun) -> str:
    """Why nothing is said about the partner's worth."""
    return f"{run.ladder_note} {NOT_MEASURED}".strip()


def cli_command(run: FinishedRun, name: str) -> str:
    """What to type for a ladder (``compare``) or an audit, where the files are called as `fedsim init` calls them."""
    files = [shlex.quote(f"{party}.toml") for party in (run.job.primary.name, *run.job.secondaries)]
    return f"fedsim {name} job.toml {' '.join(files)} --out {run.place}/{name} && fedsim report {run.place}"


def _learning_section(run: FinishedRun) -> PageSection:
    history = run.record.history
    best = run.record.best_epoch
    losses = {
        "training": _none_to_nan(epoch["loss"] for epoch in history),
        "validation": _none_to_nan(epoch["validation_loss"] for epoch in history),
    }
    metric = next(iter(history[0]["validation"]))
    marked = (best, f"best epoch: {best}")
    figures = (
        lines_figure(
            losses,
            AxisLabels("epoch", "loss", marked),
            title="Loss",
            caption="Where validation rises while training falls, the model learns its records by heart.",
        ),
        lines_figure(
            {f"validation {metric}": _none_to_nan(epoch["validation"][metric] for epoch in history)},
            AxisLabels("epoch", metric, marked),
            title=f"Validation {metric}",
            caption="It chose the epoch whose weights were kept; the test records were looked at only then.",
        ),
    )
    return PageSection("learning", "Learning", (), figures)


def _none_to_nan(values: Iterable[float | None]) -> list[float]:
    """JSON has no word for what is no number, and leaves it out."""
    return [math.nan if value is None else value for value in values]


def _gate_sections(run: FinishedRun) -> Iterator[PageSection]:
    record = run.record
    curves = [WeightCurve(c.secondary, np.array(c.similarity), np.array(c.weight)) for c in record.curves]
    heats = [MergeImportance(part.secondary, np.array(part.values)) for part in record.importances]
    if curves:
        figures = (*map(weight_figure, curves), *map(importance_figure, heats))
        yield PageSection("gates", "What the gates learnt", (), figures)


def _predictions_section(run: FinishedRun) -> PageSection:
    if not len(run.test):
        return PageSection("predictions", "Predictions", ("No records were left for a test.",))
    numbers, title = not run.record.classes, "Predictions on the test records"
    figures = _regression_figures(run) if numbers else _classification_figures(run)
    words = () if numbers else tuple(probability_warnings(run))
    return PageSection("predictions", title, words, (*figures, *group_figures(run.groups, numbers=numbers)))


def probability_warnings(run: FinishedRun) -> Iterator[str]:
    """What to know before one uses the probabilities of a classifier."""
    return calibration_warnings(run.test, run.record.metrics.get("test", {}).get("log_loss"))


def _regression_figures(run: FinishedRun) -> list[Figure]:
    truth, predicted = run.test[TRUTH_COLUMN].to_numpy(), run.test[PREDICTED_COLUMN].to_numpy()
    errors = histogram_figure(
        predicted - truth,
        title="Errors",
        caption="Predicted less true; the middle should lie at zero.",
        axis=f"predicted less true {run.record.table.label}",
    )
    density = density_figure(truth, predicted, unit=run.record.table.label)
    return [*([density] if density else []), errors]


def _classification_figures(run: FinishedRun) -> list[Figure]:
    figures = (confusion_figure(run.test), calibration_figure(run.test), threshold_figure(run.test))
    return [figure for figure in figures if figure]


def _privacy_section(run: FinishedRun) -> PageSection:
    agreed = PageTable("What was agreed", ("", "setting"), tuple(summarise_settings(run.job)))
    tables = (visibility_table(run.job), agreed)
    if run.audit is None:
        said = f"{run.audit_note or NO_AUDIT} To try them: {cli_command(run, 'audit')}"
        return PageSection("privacy", "Privacy", (said,), (), tables)
    said = f"Audit: {run.audit['headline']}."
    return PageSection("privacy", "Privacy", (said,), tuple(_attack_figures(run)), tables)


def _attack_figures(run: FinishedRun) -> Iterator[Figure]:
    findings = (run.audit or {})["findings"]
    for who in dict.fromkeys(found["adversary"] for found in findings):
        dots = [
            AttackScore(
                f"{found['attack']}, {found['about']}",
                found["score"]["value"],
                found["score"]["low"],
                found["score"]["high"],
                found["blind"],
                found["promised_at_most"],
            )
            for found in findings
            if found["adversary"] == who
        ]
        caption = "The short bar is blind guessing, the dashed one the most that was promised."
        yield attack_scores_figure(dots, title=f"Attacks by the {who}", caption=caption, axis="success")


def _cost_section(run: FinishedRun) -> PageSection:
    phases = tuple(
        (
            phase.name,
            format_duration(phase.seconds),
            format_bytes(phase.peak_bytes),
            format_bytes(_phase_bytes(run, phase.name)),
        )
        for phase in run.record.phases
    )
    table = PageTable("By phase, at the primary", ("phase", "time", "most memory until then", "bytes"), phases)
    words = f"{format_bytes(run.total_bytes)} crossed the primary's border in {format_duration(run.record.seconds)}."
    return PageSection("cost", "Cost", (words,), (_message_kinds_figure(run),) if run.ledger else (), (table,))


def _phase_bytes(run: FinishedRun, phase: str) -> int:
    return sum(entry.bytes for entry in run.ledger if entry.phase == phase)


def _message_kinds_figure(run: FinishedRun) -> Figure:
    entries = sorted(run.ledger, key=lambda entry: -entry.bytes)
    rows = [
        ChartRow(f"{e.kind}, {_direction(e)}", e.bytes / 1e6, f"{format_bytes(e.bytes)} in {format_count(e.messages)}")
        for e in entries[:MAX_MESSAGE_KINDS]
    ]
    rest = entries[MAX_MESSAGE_KINDS:]
    caption = "Bytes and messages by kind, counted by the primary frame by frame." + (
        f" Not drawn: {pluralise(len(rest), 'smaller kind')}, {format_bytes(sum(entry.bytes for entry in rest))}."
        if rest
        else ""
    )
    return bar_rows_figure(rows, ChartLabels("What crossed the border", caption, "MB", ("message", "bytes")))


def _direction(entry: LedgerEntry) -> str:
    return " → ".join(party.partition("'")[2].rstrip("'") for party in (entry.sender, entry.receiver))


def _settings_section(run: FinishedRun) -> PageSection:
    record = run.record
    table = record.table
    facts = (
        ("run", f"{record.started}, by {record.party}"),
        ("job", f"{run.job.name}, hash {record.hash}"),
        ("seed", str(run.job.seed)),
        (
            "records",
            f"{format_count(table.train)} train, {format_count(table.validation)} validate, {format_count(table.test)} test",
        ),
        ("table", f"label {table.label}, {pluralise(len(table.features), 'feature')}, digest {table.digest[:16]}"),
        *record.versions.items(),
        *record.machine.items(),
    )
    return PageSection(
        "settings", "Settings and versions", (), (), (PageTable("To repeat this run", ("", "value"), facts),)
    )


def job_text(run: FinishedRun) -> str:
    """The whole job and the configuration it led to, for whoever repeats the run."""
    return json.dumps({"job": run.record.job, "training": run.record.config}, indent=2, ensure_ascii=False)
