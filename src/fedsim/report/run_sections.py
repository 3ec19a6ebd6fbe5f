"""The parts of a run's report, each from what the run folder holds."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Iterator

import numpy as np

from fedsim.party.leaving import settings_of
from fedsim.party.run_record import PREDICTED, TRUTH
from fedsim.protocol.ledger import Entry
from fedsim.report.bars import histogram_figure
from fedsim.report.certainty import certainty_words
from fedsim.report.dots import Dot, dots_figure
from fedsim.report.figure import Figure
from fedsim.report.insight import importance_figure, weight_figure
from fedsim.report.lines import Axes, lines_figure
from fedsim.report.predictions import calibration_figure, confusion_figure, density_figure, group_figures
from fedsim.report.rows import Labels, Row, bars_figure
from fedsim.report.run import Run
from fedsim.report.run_links import Wishes, links_section
from fedsim.report.run_worth import worth_section
from fedsim.report.section import Section, Table
from fedsim.report.threshold import threshold_figure
from fedsim.report.who_saw_what import who_saw_what
from fedsim.report.words import count, duration, many, size
from fedsim.training.explain import Importance, WeightCurve

MOST_KINDS = 6
UNKNOWN = "What the partner is worth has not been measured yet."
HOW = (
    "One good test score does not show it: the primary's own identifiers may tell as much. This trains the primary "
    "alone, with the partner, and with partners that cannot help, and tells the difference with its interval:"
)
NO_AUDIT = "No attack was tried on this job."


def sections(run: Run, wishes: Wishes) -> list[Section]:
    """All parts, the answer first."""
    return [
        worth_section(run),
        links_section(run, wishes),
        _learning(run),
        *_gates(run),
        _predictions(run),
        _privacy(run),
        _cost(run),
        _settings(run),
    ]


def unknown(run: Run) -> str:
    """Why nothing is said about the partner's worth."""
    return f"{run.ladder_note} {UNKNOWN}".strip()


def command(run: Run, name: str) -> str:
    """What to type for a ladder (``compare``) or an audit, where the files are called as `fedsim init` calls them."""
    files = [shlex.quote(f"{party}.toml") for party in (run.job.primary.name, *run.job.secondaries)]
    return f"fedsim {name} job.toml {' '.join(files)} --out {run.place}/{name} && fedsim report {run.place}"


def _learning(run: Run) -> Section:
    history = run.record.history
    best = run.record.best_epoch
    losses = {
        "training": _numbers_of(epoch["loss"] for epoch in history),
        "validation": _numbers_of(epoch["validation_loss"] for epoch in history),
    }
    metric = next(iter(history[0]["validation"]))
    marked = (best, f"best epoch: {best}")
    figures = (
        lines_figure(
            losses,
            Axes("epoch", "loss", marked),
            title="Loss",
            caption="Where validation rises while training falls, the model learns its records by heart.",
        ),
        lines_figure(
            {f"validation {metric}": _numbers_of(epoch["validation"][metric] for epoch in history)},
            Axes("epoch", metric, marked),
            title=f"Validation {metric}",
            caption="It chose the epoch whose weights were kept; the test records were looked at only then.",
        ),
    )
    return Section("learning", "Learning", (), figures)


def _numbers_of(values: Iterable[float | None]) -> list[float]:
    """JSON has no word for what is no number, and leaves it out."""
    return [math.nan if value is None else value for value in values]


def _gates(run: Run) -> Iterator[Section]:
    record = run.record
    curves = [WeightCurve(c.secondary, np.array(c.similarity), np.array(c.weight)) for c in record.curves]
    heats = [Importance(part.secondary, np.array(part.values)) for part in record.importances]
    if curves:
        figures = (*map(weight_figure, curves), *map(importance_figure, heats))
        yield Section("gates", "What the gates learnt", (), figures)


def _predictions(run: Run) -> Section:
    if not len(run.test):
        return Section("predictions", "Predictions", ("No records were left for a test.",))
    numbers, title = not run.record.classes, "Predictions on the test records"
    figures = _numbers(run) if numbers else _classes(run)
    words = () if numbers else tuple(warned(run))
    return Section("predictions", title, words, (*figures, *group_figures(run.groups, numbers=numbers)))


def warned(run: Run) -> Iterator[str]:
    """What to know before one uses the probabilities of a classifier."""
    return certainty_words(run.test, run.record.metrics.get("test", {}).get("log_loss"))


def _numbers(run: Run) -> list[Figure]:
    truth, predicted = run.test[TRUTH].to_numpy(), run.test[PREDICTED].to_numpy()
    errors = histogram_figure(
        predicted - truth,
        title="Errors",
        caption="Predicted less true; the middle should lie at zero.",
        axis=f"predicted less true {run.record.table.label}",
    )
    density = density_figure(truth, predicted, unit=run.record.table.label)
    return [*([density] if density else []), errors]


def _classes(run: Run) -> list[Figure]:
    figures = (confusion_figure(run.test), calibration_figure(run.test), threshold_figure(run.test))
    return [figure for figure in figures if figure]


def _privacy(run: Run) -> Section:
    agreed = Table("What was agreed", ("", "setting"), tuple(settings_of(run.job)))
    tables = (who_saw_what(run.job), agreed)
    if run.audit is None:
        said = f"{run.audit_note or NO_AUDIT} To try them: {command(run, 'audit')}"
        return Section("privacy", "Privacy", (said,), (), tables)
    said = f"Audit: {run.audit['headline']}."
    return Section("privacy", "Privacy", (said,), tuple(_attacks(run)), tables)


def _attacks(run: Run) -> Iterator[Figure]:
    findings = (run.audit or {})["findings"]
    for who in dict.fromkeys(found["adversary"] for found in findings):
        dots = [
            Dot(
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
        yield dots_figure(dots, title=f"Attacks by the {who}", caption=caption, axis="success")


def _cost(run: Run) -> Section:
    phases = tuple(
        (phase.name, duration(phase.seconds), size(phase.peak_bytes), size(_bytes_of(run, phase.name)))
        for phase in run.record.phases
    )
    table = Table("By phase, at the primary", ("phase", "time", "most memory until then", "bytes"), phases)
    words = f"{size(run.total_bytes)} crossed the primary's border in {duration(run.record.seconds)}."
    return Section("cost", "Cost", (words,), (_kinds(run),) if run.ledger else (), (table,))


def _bytes_of(run: Run, phase: str) -> int:
    return sum(entry.bytes for entry in run.ledger if entry.phase == phase)


def _kinds(run: Run) -> Figure:
    entries = sorted(run.ledger, key=lambda entry: -entry.bytes)
    rows = [
        Row(f"{e.kind}, {_way(e)}", e.bytes / 1e6, f"{size(e.bytes)} in {count(e.messages)}")
        for e in entries[:MOST_KINDS]
    ]
    rest = entries[MOST_KINDS:]
    caption = "Bytes and messages by kind, counted by the primary frame by frame." + (
        f" Not drawn: {many(len(rest), 'smaller kind')}, {size(sum(entry.bytes for entry in rest))}." if rest else ""
    )
    return bars_figure(rows, Labels("What crossed the border", caption, "MB", ("message", "bytes")))


def _way(entry: Entry) -> str:
    return " → ".join(party.partition("'")[2].rstrip("'") for party in (entry.sender, entry.receiver))


def _settings(run: Run) -> Section:
    record = run.record
    table = record.table
    facts = (
        ("run", f"{record.started}, by {record.party}"),
        ("job", f"{run.job.name}, hash {record.hash}"),
        ("seed", str(run.job.seed)),
        ("records", f"{count(table.train)} train, {count(table.validation)} validate, {count(table.test)} test"),
        ("table", f"label {table.label}, {many(len(table.features), 'feature')}, digest {table.digest[:16]}"),
        *record.versions.items(),
        *record.machine.items(),
    )
    return Section("settings", "Settings and versions", (), (), (Table("To repeat this run", ("", "value"), facts),))


def job_text(run: Run) -> str:
    """The whole job and the configuration it led to, for whoever repeats the run."""
    return json.dumps({"job": run.record.job, "training": run.record.config}, indent=2, ensure_ascii=False)
