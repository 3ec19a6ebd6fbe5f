"""The sections of a run report, built from the run folder."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase

import numpy as np

from fedsim.cells import read_number_columns
from fedsim.config.disclosure import describe_noise, summarise_settings
from fedsim.config.job import CutTerms, Job, coordinate_columns
from fedsim.config.party_file import PartyFile, identifier_columns
from fedsim.errors import SettingError
from fedsim.linkage.private_linkage import load_private_links
from fedsim.report.audit_page import attack_figures
from fedsim.report.charts import (
    MIN_RECORDS_SHOWN,
    AxisLabels,
    ChartLabels,
    ChartRow,
    LineSeries,
    band_figure,
    grid_map_figure,
    histogram_figure,
    lines_figure,
    outlines_figure,
    reuse_figure,
    rows_figure,
)
from fedsim.report.formatting import (
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_percent,
    pluralise,
)
from fedsim.report.gates_page import importance_figure, weight_figure
from fedsim.report.ladder import LadderResults, ladder_figures
from fedsim.report.page import Figure, PageSection, PageTable
from fedsim.report.prediction_charts import (
    calibration_figure,
    calibration_warnings,
    confusion_figure,
    density_figure,
    group_figures,
    threshold_figure,
)
from fedsim.report.run_data import FinishedRun, read_primary_table
from fedsim.runs.record import PREDICTED_COLUMN, TRUTH_COLUMN, ExamplePartner, LinkListSummary
from fedsim.training.explain import MergeImportance, WeightCurve
from fedsim.types import Floats

MAX_MESSAGE_KINDS = 6
SHARP_DROP = 0.4  # of the whole fall in similarity, within one rank
NO_BREAK_SPACE = "\u00a0"
NOT_SEEN = "–"
OWN_IDENTIFIERS_SUFFIX = "-identifiers"  # ends the key of a rung that also uses the primary's own identifiers
RANK_NAMES = ("first partner record", "second", "third", "fourth", "fifth")
LINKS_NOTE = (
    "What the primary sees of the links: the similarities that the coordinator sends, and pseudonymous row numbers. "
    "Distances stay with the coordinator. Similarities are scaled: 0 is the average link of the training records, 1 is "
    "one standard deviation more similar."
)


@dataclass(frozen=True)
class ReportOptions:
    """What the owner may add to a report: maps of its places, and the identifiers of example records by row."""

    maps: Sequence[Figure] = ()
    names: Mapping[int, str] = field(default_factory=dict, repr=False)


def run_sections(run: FinishedRun, options: ReportOptions) -> list[PageSection]:
    """Return all sections, the contribution of the partner first."""
    return [
        contribution_section(run),
        links_section(run, options),
        _training_section(run),
        _gates_section(run),
        _predictions_section(run),
        _privacy_section(run),
        _cost_section(run),
        _settings_section(run),
    ]


def cli_command(run: FinishedRun, name: str) -> str:
    """Return the command line of `fedsim compare` or `fedsim audit`, with the file names that `fedsim init` uses."""
    files = [shlex.quote(f"{party}.toml") for party in (run.job.primary.name, *run.job.secondaries)]
    folder = run.path_argument
    return f"fedsim {name} job.toml {' '.join(files)} --out {folder}/{name} && fedsim report {folder}"


def contribution_section(run: FinishedRun) -> PageSection:
    """Return what the partner adds; empty where `fedsim compare` was not run."""
    title, ladder = "What the partner adds", run.ladder
    if ladder is None:
        return PageSection("contribution", title)
    seeds = f"{ladder.seeds} seeds" if ladder.seeds > 1 else "one seed"
    note = f"Every method was trained with {seeds} and evaluated on {pluralise(ladder.records, 'test record')} each."
    notes = (note, *_run_versus_ladder(run, ladder))
    return PageSection("contribution", title, notes, tuple(ladder_figures(ladder)))


def _run_versus_ladder(run: FinishedRun, ladder: LadderResults) -> Iterator[str]:
    """Explain why the score of this run differs from that of the same method in the comparison."""
    part, metrics = run.record.judged
    linking = {column for terms in run.job.secondaries.values() for column in terms.encoding.columns}
    key = run.record.method + (OWN_IDENTIFIERS_SUFFIX if linking & set(run.record.table.features) else "")
    rung = next((rung for rung in ladder.rungs if (rung.key, rung.split) == (key, run.job.task.split)), None)
    if rung is None or ladder.metric not in metrics:
        return
    # A ladder that knows the job's hash used the test records of this run for its first seed.
    same, score = ladder.hash == run.record.hash, format_number(rung.mean)
    if ladder.seeds == 1:
        score += f" on {'the same' if same else 'other'} test records ({rung.split} split)"
    else:
        first = f"; {format_number(rung.values[0])} with the first seed, on the same test records" if same else ""
        score += f" over {ladder.seeds} seeds ({rung.split} split{first})"
    yield (
        f"The model of this run was trained separately: its {part} {ladder.metric} is "
        f"{format_number(metrics[ladder.metric])}. Compare it with {rung.name}, {score}. Initial weights and noise "
        "differ, and the number of epochs where the comparison sets its own."
    )


def links_section(run: FinishedRun, options: ReportOptions) -> PageSection:
    """Return the similarity by rank, the choice of K, the reuse of candidates, examples and maps."""
    figures = [figure for links in run.record.lists for figure in _link_figures(run, links)]
    notes, has_places = [LINKS_NOTE], any(coordinate_columns(t.encoding.columns) for t in run.job.secondaries.values())
    if has_places and not options.maps:
        file = shlex.quote(f"{run.record.party}.toml")
        notes.append(f"To add a map of the primary's places: fedsim report {run.path_argument} --map {file}")
    tables = tuple(_example_tables(run, options.names))
    return PageSection("links", "Links", tuple(notes), (*figures, *options.maps), tables)


def _link_figures(run: FinishedRun, links: LinkListSummary) -> Iterator[Figure]:
    ranks = np.array(links.similarity_by_rank)
    yield band_figure(
        ranks,
        title=f"Similarity by rank: {links.secondary}",
        caption="A steep fall means that few partner records matter; a flat band, that a larger K may help.",
        axis="similarity, scaled",
    )
    path = run.folder / "lists" / f"{links.secondary}.safetensors"
    if path.is_file() and links.records >= MIN_RECORDS_SHOWN:
        similarity = load_private_links(path).similarity.astype(np.float64)
        chosen = sorted({0, (links.k - 1) // 2, links.k - 1})
        yield outlines_figure(
            {f"rank {rank + 1}": similarity[:, rank] for rank in chosen},
            title=f"Choice of K = {links.k}: {links.secondary}",
            caption=judge_k(ranks),
            axis="similarity, scaled",
        )
    if links.reuse:
        even = links.records * links.k / max(1, links.candidates or 1)
        yield reuse_figure(
            np.repeat(*(np.array(column, dtype=np.int64) for column in zip(*links.reuse, strict=True))),
            title=f"Reuse of candidates: {links.secondary}",
            caption=f"Evenly used, each candidate would be in {format_number(even)} lists. Links are less informative "
            "where a few candidates are in very many lists.",
        )


def judge_k(ranks: Floats) -> str:
    """Say whether K is too small or too large, from the quantiles of the similarity by rank.

    >>> flat, cliff = np.zeros((8, 5)), np.repeat([[1.0], [1.0], [0.0], [0.0]], 5, axis=1)
    >>> flat[:, 3] = 1.0
    >>> judge_k(flat)[:46]
    'The last link is about as similar as the first'
    >>> judge_k(cliff)[:35]
    'Similarity drops sharply after rank'
    """
    medians, spread = ranks[:, 2], float(np.median(ranks[:, 3] - ranks[:, 1]))
    fall, steps = float(medians[0] - medians[-1]), -np.diff(medians)
    if len(ranks) == 1:
        return "With one link per record, it is not known whether a second would help; try a larger K."
    if fall <= spread:
        return "The last link is about as similar as the first; a larger K may find more useful partner records."
    sharpest = int(steps.argmax())
    if len(ranks) > 3 and steps[sharpest] > SHARP_DROP * fall:
        return f"Similarity drops sharply after rank {sharpest + 1}; K = {sharpest + 1} may be enough."
    return f"Similarity falls evenly up to rank {len(ranks)}; only training with another K can show whether K fits."


def _example_tables(run: FinishedRun, names: Mapping[int, str]) -> Iterator[PageTable]:
    """Show a few test records, under letters, or under their rows and identifiers where the owner asked for them."""
    rows = dict.fromkeys(example.row for example in run.record.examples)
    letters = dict(zip(rows, ascii_uppercase, strict=False))
    for secondary in dict.fromkeys(example.secondary for example in run.record.examples):
        examples = [example for example in run.record.examples if example.secondary == secondary]
        most = max(len(example.partners) for example in examples)
        gates = any(partner.share is not None for example in examples for partner in example.partners)
        shown = "similarity, learned weight and share of the contribution" if gates else "similarity"
        made_up = "Numbers of partner records" if names else "Letters and numbers"
        note = (
            f"{pluralise(len(examples), 'test record')}, from the best to the worst linked one, with the {shown} of "
            f"their partner records. {made_up} are made up for this page."
        )
        cells = []
        for example in examples:
            named = [f"row {example.row + 1}", names.get(example.row, "")] if names else []
            own = named or [f"record {letters[example.row]}"]
            cells.append((*own, *map(_partner_cell, example.partners)))
        head = ("record", *(["identifiers"] if names else []), *RANK_NAMES[:most])
        yield PageTable(f"Examples: {secondary}", head, tuple(cells), note)


def _partner_cell(partner: ExamplePartner) -> str:
    parts = [f"no. {partner.partner}: {format_number(partner.similarity)}"]
    parts += [] if partner.weight is None else [f"weight {format_number(partner.weight)}"]
    parts += [] if partner.share is None else [format_percent(partner.share)]
    return ", ".join(part.replace(" ", NO_BREAK_SPACE) for part in parts)


def location_map_figures(run: FinishedRun, own: PartyFile) -> list[Figure]:
    """Draw a map of the primary's places for every secondary that is linked by latitude and longitude."""
    frame, figures = read_primary_table(run, own), []
    for name in run.job.secondaries:
        columns = identifier_columns(run.job, own, name)
        axes = [columns[agreed] for agreed in coordinate_columns(list(columns)) or ()]
        if axes:
            links = load_private_links(run.folder / "lists" / f"{name}.safetensors")
            figure = grid_map_figure(
                read_number_columns(frame, axes, str(own.party)),
                links.similarity[:, 0].astype(np.float64),
                title=f"Similarity on the map: {name}",
                caption="The primary's records in cells, shaded by the median similarity of the best link.",
                shaded="median similarity",
            )
            figures += [] if figure is None else [figure]
    if not figures:
        raise SettingError(
            f"no secondary of job '{run.job.name}' is linked by latitude and longitude, or there are too few places to "
            "show; omit the map",
            code="no-map",
        )
    return figures


def _training_section(run: FinishedRun) -> PageSection:
    history, best = run.record.history, run.record.best_epoch
    metric, marker = next(iter(history[0]["validation"])), (best, f"best epoch: {best}")

    def series(name: str, values: Iterable[float | None]) -> LineSeries:
        return LineSeries(name, [math.nan if value is None else value for value in values])  # JSON has no NaN

    losses = [
        series("training", (epoch["loss"] for epoch in history)),
        series("validation", (epoch["validation_loss"] for epoch in history)),
    ]
    scores = [series(f"validation {metric}", (epoch["validation"][metric] for epoch in history))]
    loss = lines_figure(
        losses,
        AxisLabels("epoch", "loss", marker),
        title="Loss",
        caption="A validation loss that rises while the training loss falls is a sign of overfitting.",
    )
    score = lines_figure(
        scores,
        AxisLabels("epoch", metric, marker),
        title=f"Validation {metric}",
        caption="The best epoch is chosen on the validation records; test records are used only after that.",
    )
    return PageSection("training", "Training", (), (loss, score))


def _gates_section(run: FinishedRun) -> PageSection:
    record = run.record
    curves = [WeightCurve(c.secondary, np.array(c.similarity), np.array(c.weight)) for c in record.curves]
    importances = [MergeImportance(part.secondary, np.array(part.values)) for part in record.importances]
    figures = (*map(weight_figure, curves), *map(importance_figure, importances)) if curves else ()
    return PageSection("gates", "What the gates learned", (), figures)


def _predictions_section(run: FinishedRun) -> PageSection:
    title, test = "Predictions on the test records", run.test
    if not len(test):
        return PageSection("predictions", title, ("The split has no test records.",))
    warnings: tuple[str, ...] = ()
    figures: list[Figure | None]
    if run.record.classes:
        warnings = tuple(probability_warnings(run))
        figures = [confusion_figure(test), calibration_figure(test), threshold_figure(test)]
    else:
        truth, predicted = test[TRUTH_COLUMN].to_numpy(), test[PREDICTED_COLUMN].to_numpy()
        label, caption = run.record.table.label, "Predicted minus actual; the median should be near zero."
        errors = histogram_figure(predicted - truth, title="Errors", caption=caption, axis=f"error in {label}")
        figures = [density_figure(truth, predicted, unit=label), errors]
    groups = group_figures(run.groups, numbers=not run.record.classes)
    drawn = tuple(figure for figure in figures if figure)
    return PageSection("predictions", title, warnings, (*drawn, *groups))


def probability_warnings(run: FinishedRun) -> Iterator[str]:
    """Warn where the probabilities of a classifier are not useful."""
    return calibration_warnings(run.test, run.record.metrics.get("test", {}).get("log_loss"))


def _privacy_section(run: FinishedRun) -> PageSection:
    agreed = PageTable("Settings agreed by the parties", ("", "setting"), tuple(summarise_settings(run.job)))
    tables = (visibility_table(run.job), agreed)
    if run.audit is None:
        note = f"{run.audit_note or 'This job has not been audited.'} To audit it: {cli_command(run, 'audit')}"
        return PageSection("privacy", "Privacy", (note,), (), tables)
    note, figures = f"Audit: {run.audit['headline']}.", attack_figures(run.audit["findings"])
    return PageSection("privacy", "Privacy", (note,), tuple(figures), tables)


def visibility_table(job: Job) -> PageTable:
    """Return who received what in a job: one row per kind of information, one column per role."""
    hidden = any(terms.hide_rows for terms in job.secondaries.values())
    noise = {name: describe_noise(terms) for name, terms in job.secondaries.items()}
    same = len(set(noise.values())) == 1
    similarities = next(iter(noise.values())) if same else "; ".join(f"{name}: {text}" for name, text in noise.items())

    def protection(terms: CutTerms | None) -> str:
        return "unprotected" if terms is None else f"clipped to {terms.clip:g}, noise {terms.noise:g} times that"

    rows = (
        ("identifiers of the primary", "its own", NOT_SEEN, "encoded, without the key"),
        ("identifiers of a secondary", NOT_SEEN, "its own", "encoded, without the key"),
        ("features of the primary", "its own", NOT_SEEN, NOT_SEEN),
        ("features of a secondary", NOT_SEEN, "its own", NOT_SEEN),
        ("labels", "its own", NOT_SEEN, NOT_SEEN),
        ("distances", NOT_SEEN, NOT_SEEN, "all that it computes"),
        ("similarities", similarities, NOT_SEEN, "before noise"),
        (
            "partner records of a record",
            "row numbers that never repeat" if hidden else "pseudonymous row numbers",
            "the requested rows",
            "all",
        ),
        ("activations at the cut layer", protection(job.protection.activations), "its own", NOT_SEEN),
        ("gradients at the cut layer", "its own", protection(job.protection.gradients), NOT_SEEN),
    )
    return PageTable("Who received what", ("", "primary", "each secondary", "coordinator"), rows)


def _cost_section(run: FinishedRun) -> PageSection:
    phases = []
    for phase in run.record.phases:
        sent = sum(entry.bytes for entry in run.ledger if entry.phase == phase.name)
        cost = format_duration(phase.seconds), format_bytes(phase.peak_bytes), format_bytes(sent)
        phases.append((phase.name, *cost))
    head = ("phase", "time", "peak memory so far", "bytes")
    table = PageTable("Cost by phase, at the primary", head, tuple(phases))
    total, seconds = format_bytes(run.total_bytes), format_duration(run.record.seconds)
    note = f"The primary sent and received {total} in {seconds}."
    return PageSection("cost", "Cost", (note,), (_message_kinds_figure(run),) if run.ledger else (), (table,))


def _message_kinds_figure(run: FinishedRun) -> Figure:
    entries, rows = sorted(run.ledger, key=lambda entry: -entry.bytes), []
    for entry in entries[:MAX_MESSAGE_KINDS]:
        way = " → ".join(party.partition("'")[2].rstrip("'") for party in (entry.sender, entry.receiver))
        text = f"{format_bytes(entry.bytes)} in {format_count(entry.messages)}"
        rows.append(ChartRow(f"{entry.kind}, {way}", entry.bytes / 1e6, text))
    caption, rest = "Bytes and number of messages by kind, counted at the primary.", entries[MAX_MESSAGE_KINDS:]
    if rest:
        left = format_bytes(sum(entry.bytes for entry in rest))
        caption += f" Not drawn: {pluralise(len(rest), 'smaller kind')}, {left}."
    return rows_figure(rows, ChartLabels("Messages", caption, "MB", ("message", "bytes")), bars=True)


def _settings_section(run: FinishedRun) -> PageSection:
    record, table = run.record, run.record.table
    train, validation, test = (format_count(n) for n in (table.train, table.validation, table.test))
    facts = (
        ("run", f"{record.started}, by {record.party}"),
        ("job", f"{run.job.name}, hash {record.hash}"),
        ("seed", str(run.job.seed)),
        ("records", f"{train} training, {validation} validation, {test} test"),
        ("table", f"label {table.label}, {pluralise(len(table.features), 'feature')}, digest {table.digest[:16]}"),
        *record.versions.items(),
        *record.machine.items(),
    )
    tables = (PageTable("To repeat this run", ("", "value"), facts),)
    return PageSection("settings", "Settings and versions", (), (), tables)
