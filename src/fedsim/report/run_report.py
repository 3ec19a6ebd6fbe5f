"""The report of a run: one self-contained HTML page, and a model card in Markdown."""

import json
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from string import ascii_uppercase

import numpy as np

from fedsim.config import PartyFile, disclosure, stored_audit
from fedsim.config.job import Job
from fedsim.config.job_kind import CoordinatorKind, DirectKind, JobKind
from fedsim.linkage.encoding.quality import QUALITY_HEAD, ReceivedQuality
from fedsim.linkage.private_linkage import load_private_links
from fedsim.registry import METHODS
from fedsim.report import charts, model_charts
from fedsim.report.formatting import format_bytes, format_duration, format_number, format_percent, pluralise
from fedsim.report.page import Figure, PageSection, PageTable, render_markdown, render_template, write_page
from fedsim.report.run_data import REPORT_FILE, FinishedRun, example_identifiers, read_run
from fedsim.runs.record import (
    LOWER_COLUMN,
    PREDICTED_COLUMN,
    TRUTH_COLUMN,
    UPPER_COLUMN,
    GroupError,
    LinkListSummary,
    RunRecord,
)
from fedsim.runs.run_folder import links_path
from fedsim.training.explain import MergeImportance, WeightCurve, field_names
from fedsim.types import Floats

CARD_FILE = "model-card.md"
MAX_GROUPS = 5
NOT_MEASURED = "What the partner adds has not been measured yet."
COMPARE_HINT = (
    "A good test score does not show it: the primary's own identifiers may be as informative. This command trains the "
    "primary alone, with the partner, and with partners that cannot help, and reports the difference with its interval:"
)
ANONYMOUS_NOTE = "This page contains counts, averages and cells, and a few records without identifiers or row numbers"
IDENTIFIERS_NOTE = "This page contains the IDENTIFIERS of a few records, as requested by their owner: keep it private"
SHARP_DROP = 0.4  # of the whole fall in similarity, within one rank
NOT_SEEN = "–"
OWN_IDENTIFIERS_SUFFIX = "-identifiers"  # ends the key of a rung that also uses the primary's own identifiers
MAX_EXAMPLE_COLUMNS = 6
EXAMPLES_NOTE = (
    "A few test records, from the best to the worst linked one. A bar shows by how much a partner record changes the "
    "prediction compared with an average partner record; the bars lead from the prediction with average partner "
    "records to that of the model. Letters and numbers of partner records are valid on this page only."
)


def write_report(folder: Path, named: PartyFile | None = None) -> Path:
    """Write the page and the model card of a run folder.

    Parameters
    ----------
    folder
        The run folder of a primary.
    named
        The primary's party file, to add the identifiers of the example records.

    Returns
    -------
    Path
        The page.
    """
    run = read_run(folder)
    names = {} if named is None else example_identifiers(run, named)
    write_page(run_page(run, names), folder / REPORT_FILE)
    write_page(model_card(run), folder / CARD_FILE)
    return folder / REPORT_FILE


def _contribution(run: FinishedRun) -> str:
    return f"{run.ladder_note} {NOT_MEASURED}".strip() if run.ladder is None else run.ladder.worth


def run_page(run: FinishedRun, names: Mapping[int, str]) -> str:
    """Return a self-contained HTML page."""
    record, (part, metrics) = run.record, run.record.judged
    partners = ", ".join(f"{name} ({terms.k} partner records each)" for name, terms in run.job.secondaries.items())
    linked = "directly" if run.job.coordinator is None else f"by {run.job.coordinator.name}"
    lead = f"{record.party} predicts {record.table.label} of {pluralise(record.table.records, 'record')} "
    lead += f"with {partners}, linked {linked}; trained on {record.started[:10]}."
    n_records = record.table.test if part == "test" else record.table.validation
    records = f"{pluralise(n_records, 'record')}, {run.job.task.split} split"
    noise = {
        f"τ {terms.tau:g}" if terms.tau is not None else "none" if terms.sigma is None else f"σ {terms.sigma:g}"
        for terms in run.job.secondaries.values()
    }
    evaluated = [links.evaluated for links in record.lists if links.evaluated is not None]
    threads = pluralise(int(record.versions.get("threads", "1")), "thread")
    most = record.config.get("epochs", len(record.history))
    tiles = [
        *((format_number(value), f"{part} {name} of this model", records) for name, value in list(metrics.items())[:2]),
        (f"{record.best_epoch}", "best epoch", f"of {len(record.history)} trained; at most {most}"),
        (format_bytes(run.total_bytes), "transferred", "sent and received by the primary"),
        (format_duration(record.seconds), "total time", threads),
        (f"{sum(evaluated):,}", "tokens evaluated", "all that secondaries saw")
        if evaluated
        else (noise.pop() if len(noise) == 1 else "varies", "noise on similarities", "see Privacy"),
        _risk_tile(run),
    ]
    return render_template(
        "run_page.html",
        subject="run report",
        title=f"{run.job.name}: {record.method} at {record.party}",
        answer=_contribution(run),
        command=cli_command(run, "compare") if run.ladder is None else "",
        hint=COMPARE_HINT,
        lead=lead,
        tiles=tiles,
        sections=[
            *(section(run) for section in (contribution_section, links_section, _training, _gates, _predictions)),
            examples_section(run, names),
            *(section(run) for section in (_privacy, _cost, _settings)),
        ],
        content_note=IDENTIFIERS_NOTE if names else ANONYMOUS_NOTE,
        job=json.dumps({"job": record.job, "training": record.config}, indent=2, ensure_ascii=False),
    )


def _risk_tile(run: FinishedRun) -> tuple[str, str, str]:
    """Return the worst finding of the audit as a tile, or that there was no audit."""
    if run.audit is None:
        return "not audited", "attacks on this job", "see Privacy for the command"
    broken = [attack for attack in run.audit["findings"] if attack["verdict"] == stored_audit.BROKEN_VERDICT]
    worst = max(broken or run.audit["findings"], key=lambda attack: attack["leak"])
    score, guess = format_number(worst["score"]["value"]), format_number(worst["blind"])
    measured = f"{worst['measure']}: {score} (guessing {guess})"
    if broken:
        return "broken", f"guarantee: {worst['attack']}", measured
    return format_percent(worst["leak"]), f"worst attack: {worst['attack']}, by the {worst['adversary']}", measured


# The sections of the page.


def cli_command(run: FinishedRun, name: str) -> str:
    """Return the command line of `fedsim compare` or `fedsim audit`, with the file names that `fedsim init` uses."""
    files = [shlex.quote(f"{party}.toml") for party in (run.job.primary.name, *run.job.secondaries)]
    folder = run.path_argument
    out = "" if name == "audit" else f" --out {folder}/{name}"  # an audit is stored where the report finds it
    return f"fedsim {name} job.toml {' '.join(files)}{out} && fedsim report {folder}"


def contribution_section(run: FinishedRun) -> PageSection:
    """Return what the partner adds; empty where `fedsim compare` was not run."""
    title, ladder = "What the partner adds", run.ladder
    if ladder is None:
        return PageSection("contribution", title)
    seeds = f"{ladder.seeds} seeds" if ladder.seeds > 1 else "one seed"
    note = f"Every method was trained with {seeds} and evaluated on {pluralise(ladder.records, 'test record')} each."
    section = PageSection("contribution", title, (note,), tuple(model_charts.ladder_figures(ladder)))
    part, metrics = run.record.judged
    linking = {column for terms in run.job.secondaries.values() for column in terms.columns}
    key, own = run.record.method, bool(linking & set(run.record.table.features))
    if METHODS.detail(key, "trees"):
        key = key if own else ""  # in the ladder, trees always use the primary's identifiers
    elif own:
        key += OWN_IDENTIFIERS_SUFFIX
    rung = next((rung for rung in ladder.rungs if (rung.key, rung.split) == (key, run.job.task.split)), None)
    if rung is None or ladder.metric not in metrics:
        return section
    if ladder.hash == run.record.hash and math.isclose(rung.mean, metrics[ladder.metric], rel_tol=1e-6):
        return replace(section, paragraphs=(note, f"{rung.name} is the model of this run."))
    seeds = f" over {ladder.seeds} seeds" if ladder.seeds > 1 else ""
    difference = (
        f"The model of this run was trained separately: its {part} {ladder.metric} is "
        f"{format_number(metrics[ladder.metric])}. Compare it with {rung.name}, {format_number(rung.mean)}{seeds} "
        f"({rung.split} split). Initial weights, noise and perhaps the number of epochs differ."
    )
    return replace(section, paragraphs=(note, difference))


def _describe_visible_links(job: Job) -> str:
    """Say what the primary sees of the links, and how similarities are scaled."""
    average = job.kind.scaled_over(job)
    scale = f"Similarities are scaled: 0 is the average link of {average}, 1 is one standard deviation more similar"
    return f"What the primary sees of the links: {job.kind.LINKS_SEEN}. {scale}."


def links_section(run: FinishedRun) -> PageSection:
    """Return the similarity by rank with a verdict on K, and the reuse of candidates."""
    notes = [_describe_visible_links(run.job)]
    notes += [
        f"{links.secondary}: {format_percent(links.unmatched)} of the test records have no match among their "
        f"{pluralise(links.k, 'partner record')}, according to the match gate."
        for links in run.record.lists
        if links.unmatched is not None
    ]
    figures = [figure for links in run.record.lists for figure in _link_figures(run, links)]
    tables = [
        PageTable(f"Quality of the links: {links.secondary}", QUALITY_HEAD, tuple(rows))
        for links in run.record.lists
        if (rows := ReceivedQuality.of(links).rows())
    ]
    return PageSection("links", "Links", tuple(notes), tuple(figures), tuple(tables))


def _link_figures(run: FinishedRun, links: LinkListSummary) -> Iterator[Figure]:
    ranks = np.array(links.similarity_by_rank)
    yield charts.band_figure(
        ranks, title=f"Similarity by rank: {links.secondary}", caption=judge_k(ranks), axis="similarity, scaled"
    )
    if links.reuse:
        even = links.records * links.k / max(1, links.candidates or 1)
        yield charts.reuse_figure(
            np.repeat(*(np.array(column, dtype=np.int64) for column in zip(*links.reuse, strict=True))),
            title=f"Reuse of candidates: {links.secondary}",
            caption=f"If all candidates were used equally, each would be in {format_number(even)} lists. Links are "
            "less informative where a few candidates are in very many lists.",
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
    return f"Similarity falls evenly up to rank {len(ranks)}; only training can show whether another K is better."


def examples_section(run: FinishedRun, names: Mapping[int, str]) -> PageSection:
    """Return why a few test records are predicted as they are, under letters, or by their rows for their owner."""
    title, examples = "Why these predictions", run.record.explained
    if not examples:
        return PageSection("examples", title)
    letters = [f"record {letter}" for letter in ascii_uppercase[: len(examples)]]
    called = [f"row {one.row + 1}: {names.get(one.row, '')}" for one in examples] if names else letters
    drawn = [
        model_charts.waterfall_figure(name, one.explanation, one.truth, run.record.table.label)
        for name, one in zip(called, examples, strict=True)
    ]
    ranks = zip(*(one.explanation.columns for one in examples), strict=True)
    columns = list(dict.fromkeys(column for rank in ranks for column in rank))
    shown = columns[:MAX_EXAMPLE_COLUMNS]
    cells = tuple(
        (name, *(model_charts.format_signed(one.explanation.columns[column]) for column in shown))
        for name, one in zip(called, examples, strict=True)
    )
    note = "How much higher the prediction is than with the column's median, or its most frequent category, instead."
    own = (PageTable("Effect of the record's own columns", ("record", *shown), cells, note),) if shown else ()
    notes = [EXAMPLES_NOTE]
    return PageSection("examples", title, tuple(notes), tuple(drawn), own)


def _training(run: FinishedRun) -> PageSection:
    history, best = run.record.history, run.record.best_epoch
    metric = next(iter(history[0]["validation"]))
    marker = (best, f"best epoch: {best}") if best else None  # 0 is the start of a job that continues another

    def series(name: str, values: Iterable[float | None]) -> charts.LineSeries:
        return charts.LineSeries(name, [math.nan if value is None else value for value in values])  # JSON has no NaN

    kinds = {"training": "loss", "validation": "validation_loss"}
    losses = [series(name, (epoch[key] for epoch in history)) for name, key in kinds.items()]
    scores = [series(f"validation {metric}", (epoch["validation"][metric] for epoch in history))]
    caption = "A validation loss that rises while the training loss falls is a sign of overfitting."
    loss = charts.lines_figure(losses, charts.AxisLabels("epoch", "loss", marker), title="Loss", caption=caption)
    axes, title = charts.AxisLabels("epoch", metric, marker), f"Validation {metric}"
    caption = "The best epoch is chosen on the validation records; test records are used only after that."
    score = charts.lines_figure(scores, axes, title=title, caption=caption)
    notes = [] if best else ["No epoch was better than the weights of the earlier job, so these are used."]
    return PageSection("training", "Training", (*notes, *tree_notes(run.record)), (loss, score))


def tree_notes(record: RunRecord) -> Iterator[str]:
    """Say which weight the trees beside the network have and what they see; nothing for methods without trees."""
    trees = record.trees
    if trees is None:
        return
    if not trees.weight:
        yield "Boosted trees did not improve the network's predictions of the validation records; none are used."
        return
    seen = [
        "the primary's features",
        *([f"trigrams of {', '.join(trees.names)}"] if trees.names else []),
        *([f"embeddings of the partner records of {', '.join(trees.partners)}"] if trees.partners else []),
    ]
    weight = (
        f"Boosted trees have {format_percent(trees.weight)} of the weight in a prediction, the network has the rest"
    )
    learnt = "They were chosen on the validation records, then fitted to the training and the validation records"
    yield f"{weight}. The trees see {'; '.join(seen)}. {learnt}."


def _gates(run: FinishedRun) -> PageSection:
    record = run.record
    curves = [WeightCurve(c.secondary, np.array(c.similarity), np.array(c.weight)) for c in record.curves]
    importances = [MergeImportance(part.secondary, np.array(part.values)) for part in record.importances]
    pairs: dict[str, Floats] = {}  # by the name of the curve
    for one in record.lists:
        path = links_path(run.folder, one.secondary)
        vectors = load_private_links(path).similarity if path.is_file() else np.full((1, 1, 1), np.nan)  # (n, K, F)
        for name, field in zip(field_names(one.secondary, vectors.shape[2]), np.moveaxis(vectors, 2, 0), strict=True):
            known = field.ravel()[np.isfinite(field.ravel())].astype(np.float64)
            pairs |= {name: known} if len(known) else {}
    weights = [model_charts.weight_figure(curve, pairs.get(curve.party)) for curve in curves]
    figures = (*weights, *map(model_charts.importance_figure, importances))
    return PageSection("gates", "What the gates learned", (), figures if curves else ())


def _predictions(run: FinishedRun) -> PageSection:
    title, test = "Predictions on the test records", run.test
    if not len(test):
        return PageSection("predictions", title, ("The split has no test records.",))
    classes: PageTable | None = None
    if run.record.classes:
        notes, classes = tuple(probability_warnings(run)), model_charts.confusion_table(test)
        figures = [model_charts.calibration_figure(test)]
    else:
        truth, predicted = test[TRUTH_COLUMN].to_numpy(), test[PREDICTED_COLUMN].to_numpy()
        label, caption = run.record.table.label, "Predicted minus actual; the median should be near zero."
        notes = tuple(interval_notes(run))
        errors = charts.histogram_figure(predicted - truth, title="Errors", caption=caption, axis=f"error in {label}")
        figures = [model_charts.density_figure(truth, predicted, unit=label), errors]
    groups = model_charts.group_figures(run.groups, numbers=not run.record.classes)
    drawn = tuple(figure for figure in figures if figure)
    tables = (classes, *absence_tables(run))
    return PageSection("predictions", title, notes, (*drawn, *groups), tuple(table for table in tables if table))


def absence_tables(run: FinishedRun) -> Iterator[PageTable]:
    """Show how much worse the predictions are while a secondary is away, if the model was trained to do without it."""
    if not run.record.absence:
        return
    everyone, *others = run.record.absence
    metric, start = next(iter(everyone.metrics.items()))
    rows = [("all secondaries", format_number(start), "")]
    for one in others:
        value = one.metrics[metric]
        change = f"{'+' if value >= start else '−'}{format_percent(abs(value / start - 1))}" if start else ""
        rows.append((f"without {one.away}", format_number(value), change))
    note = f"On {pluralise(everyone.records, 'test record')}. The same model predicts while a secondary is away."
    yield PageTable("If a secondary is away", ("", metric, "change"), tuple(rows), note)


def interval_notes(run: FinishedRun) -> Iterator[str]:
    """Say how often the intervals contain the truth of test records, and how wide they are."""
    test = run.test
    if LOWER_COLUMN not in test.columns or not len(test):
        return
    truth, lower, upper = (test[name].to_numpy() for name in (TRUTH_COLUMN, LOWER_COLUMN, UPPER_COLUMN))
    inside, widths = float(((truth >= lower) & (truth <= upper)).mean()), np.quantile(upper - lower, [0.1, 0.5, 0.9])
    low, middle, high = (format_number(width) for width in widths)
    yield (
        f"Intervals calibrated to contain 90 % contain {format_percent(inside)} of the test records. The median width "
        f"is {middle} (80 % of records: {low} to {high}); intervals widen where members disagree."
    )


def probability_warnings(run: FinishedRun) -> Iterator[str]:
    """Warn where the probabilities of a classifier are not useful."""
    return model_charts.calibration_warnings(run.test, run.record.metrics.get("test", {}).get("log_loss"))


def _privacy(run: FinishedRun) -> PageSection:
    agreed = PageTable("Settings agreed by the parties", ("", "setting"), tuple(disclosure.summarise_settings(run.job)))
    tables = (visibility_table(run.job), agreed)
    if run.audit is None:
        note = f"{run.audit_note or 'This job has not been audited.'} To audit it: `{cli_command(run, 'audit')}`"
        return PageSection("privacy", "Privacy", (note,), (), tables)
    note, figures = (
        f"Audit: {run.audit['headline']}.",
        charts.attack_figures(run.audit["findings"], run.audit["limit"]),
    )
    return PageSection("privacy", "Privacy", (note,), tuple(figures), tables)


ACTIVATIONS, EMBEDDED_ROWS = "activations at the cut layer", "embedding of the linked rows"
# What an adversary infers from which row of the table; of filters, from the identifiers of the victim.
# What this job does not reveal by itself, but other jobs or requests would add.


def visibility_table(job: Job) -> PageTable:
    """Return who received what in a job: one row per kind of information, one column per role."""
    return _VISIBILITY[type(job.kind)](job)


def _coordinator_visibility(job: Job) -> PageTable:
    noise = {name: disclosure.describe_noise(terms) for name, terms in job.secondaries.items()}
    same = len(set(noise.values())) == 1
    similarities = next(iter(noise.values())) if same else "; ".join(f"{name}: {text}" for name, text in noise.items())

    sealed = job.protection.sealed
    gradients = activations = "none: labels are sealed" if sealed else "unprotected"
    encoded = "encoded, without the key"
    embedding: tuple[tuple[str, ...], ...] = ()
    if job.sends_embedding:
        kind = f"every row once, as {job.protection.embedding_name} embedding, unprotected"
        embedding = ((EMBEDDED_ROWS, kind, "its own", NOT_SEEN),)
    rows = (
        ("identifiers of the primary", "its own", NOT_SEEN, encoded),
        ("identifiers of a secondary", NOT_SEEN, "its own", encoded),
        ("features of the primary", "its own", NOT_SEEN, NOT_SEEN),
        ("features of a secondary", NOT_SEEN, "its own", NOT_SEEN),
        ("labels", "its own", NOT_SEEN, NOT_SEEN),
        ("distances", NOT_SEEN, NOT_SEEN, "all that it computes"),
        ("similarities", similarities, NOT_SEEN, "before noise"),
        ("partner records of a record", "pseudonymous row numbers", "the requested rows", "all"),
        *embedding,
        (ACTIVATIONS, activations, "its own", NOT_SEEN),
        ("gradients at the cut layer", "its own", gradients, NOT_SEEN),
    )
    return PageTable("Who received what", ("", "primary", "each secondary", "coordinator"), rows)


def _direct_visibility(job: Job) -> PageTable:
    shown = sorted(
        {field.kind.shown for terms in job.secondaries.values() for field in terms.token_schema.fields} - {""}
    )
    hints = f"of what it opens {', '.join(shown)}" if shown else NOT_SEEN
    opened = f"of what its records open, as {job.protection.embedding_name} embedding"
    rows = (
        ("identifiers of the primary", "its own", "blinded tokens: random points, a rounded number of them"),
        ("identifiers of a secondary", hints, "its own"),
        ("features of the primary", "its own", NOT_SEEN),
        ("features of a secondary", opened, "its own"),
        ("labels", "its own", NOT_SEEN),
        ("similarities", "by the tokens in common with what it opens", NOT_SEEN),
        ("partner records of a record", "pseudonymous numbers", NOT_SEEN),
    )
    return PageTable("Who received what", ("", "primary", "each secondary"), rows)


_VISIBILITY: Mapping[type[JobKind], Callable[[Job], PageTable]] = {
    CoordinatorKind: _coordinator_visibility,
    DirectKind: _direct_visibility,
}


def _cost(run: FinishedRun) -> PageSection:
    phases = []
    for phase in run.record.phases:
        sent = sum(entry.bytes for entry in run.ledger if entry.phase == phase.name)
        cost = format_duration(phase.seconds), format_bytes(phase.peak_bytes), format_bytes(sent)
        phases.append((phase.name, *cost))
    head = ("phase", "time", "peak memory so far", "bytes")
    tables = (PageTable("Cost by phase, at the primary", head, tuple(phases)),)
    total, seconds = format_bytes(run.total_bytes), format_duration(run.record.seconds)
    note = f"The primary sent and received {total} in {seconds}."
    entries = sorted(run.ledger, key=lambda entry: -entry.bytes)
    kinds = tuple((one.kind, one.sender, one.receiver, f"{one.messages:,}", format_bytes(one.bytes)) for one in entries)
    messages = PageTable("Messages", ("message", "from", "to", "number", "bytes"), kinds, "Counted at the primary.")
    return PageSection("cost", "Cost", (note,), tables=(*tables, messages) if kinds else tables)


def _settings(run: FinishedRun) -> PageSection:
    record, table = run.record, run.record.table
    train, validation, test = (f"{n:,}" for n in (table.train, table.validation, table.test))
    facts = (
        ("run", f"{record.started}, by {record.party}"),
        ("job", f"{run.job.name}, hash {record.hash}"),
        ("seed", str(run.job.seed)),
        ("records", f"{train} training, {validation} validation, {test} test, {table.unlabelled:,} without a label"),
        ("table", f"label {table.label}, {pluralise(len(table.features), 'feature')}, digest {table.digest[:16]}"),
        *record.versions.items(),
        *record.machine.items(),
    )
    return PageSection(
        "settings", "Settings and versions", tables=(PageTable("To reproduce this run", ("", "value"), facts),)
    )


# The model card.


def model_card(run: FinishedRun) -> str:
    """Return the model card in Markdown."""
    record = run.record
    metrics = [(part, name, format_number(v)) for part, found in record.metrics.items() for name, v in found.items()]
    groups = [(one.by, one.group, f"{one.records:,}", _format_error(one)) for one in _worst_groups(run)]
    settings = tuple(disclosure.summarise_settings(run.job))
    missing = f"{run.audit_note or 'This job has not been audited.'} See fedsim audit."
    return render_markdown(
        "model_card.md",
        job=run.job,
        record=record,
        worth=_contribution(run),
        tags=["fedsim", "vertical-federated-learning", record.task],
        metric_names=list(record.metrics.get("test", {})),
        trees=tree_notes(record),
        metrics=PageTable("", ("part", "metric", "value"), tuple(metrics)),
        notes=probability_warnings(run) if record.classes else interval_notes(run),
        groups=PageTable("", ("column", "group", "test records", "error"), tuple(groups)),
        seen=visibility_table(run.job),
        settings=PageTable("", ("setting", "value"), settings),
        audit=f"Audit: {run.audit['headline']}." if run.audit else missing,
    )


def _format_error(group: GroupError) -> str:
    if group.low is None or group.high is None:
        return format_number(group.error)
    return f"{format_number(group.error)} (95 %: {format_number(group.low)} to {format_number(group.high)})"


def _worst_groups(run: FinishedRun) -> list[GroupError]:
    return sorted(run.groups, key=lambda group: -group.error)[:MAX_GROUPS]
