"""Charts of a trained model: predictions against actual values, what the gates learned, and the ladder of methods.

Letters: K partner records, R outputs per pair.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from fedsim.contribution.ladder import STEP_NAMES, rung_side
from fedsim.report import charts, run_data, svg
from fedsim.report.charts import ChartRow
from fedsim.report.formatting import format_number, format_percent, pluralise
from fedsim.report.page import Figure, FigureGroup, PageTable
from fedsim.runs.record import CONFIDENCE_COLUMN, PREDICTED_COLUMN, TRUTH_COLUMN, GroupError
from fedsim.training.explain import MergeImportance, WeightCurve
from fedsim.types import Explanation, Floats, PartnerEffect

CELLS_PER_SIDE = (28, 20, 14, 10, 7, 5, 3, 1)  # the first that hides few records is used
MAX_CLASSES = 12
TICKS = 5  # of an axis, which may end between two of them
MAX_GROUP_COLUMNS = 4
CONFIDENCE_BINS = 5
MAX_CALIBRATION_GAP = 0.1  # between the stated confidence and the accuracy
GAP_DEVIATIONS = 2.0  # a smaller gap may be due to chance


def density_figure(truth: Floats, predicted: Floats, *, unit: str) -> Figure | None:
    """Draw the number of test records by actual and predicted value; None where there are too few."""
    finite = np.isfinite(truth) & np.isfinite(predicted)
    truth, predicted = truth[finite], predicted[finite]
    if len(truth) < charts.MIN_RECORDS_SHOWN:
        return None
    both = np.concatenate([truth, predicted])
    first, last = float(both.min()), float(both.max())
    inner = [float(end) for end in np.quantile(both, [0.005, 0.995])]
    if last - first > charts.TAIL_RATIO * (inner[1] - inner[0]) > 0:
        first, last = inner
    inside = (np.minimum(truth, predicted) >= first) & (np.maximum(truth, predicted) <= last)
    low, high = svg.nice_range(first, last, 2 * TICKS)
    true, found = (np.clip(values[inside], low, high) for values in (truth, predicted))  # remove rounding errors
    counts, edges = np.zeros((1, 1), dtype=np.int64), np.array([low, high])
    for cells in CELLS_PER_SIDE:
        drawn, edges, _ = np.histogram2d(true, found, bins=cells, range=[[low, high]] * 2)
        counts = charts.hide_small(drawn)
        if counts.sum() >= (1.0 - charts.MAX_HIDDEN_SHARE) * len(true):
            break
    x, y = svg.x_scale(low, high), svg.y_scale(low, high)
    parts = [svg.left_axis(y, f"predicted {unit}".strip()), svg.bottom_axis(x, f"actual {unit}".strip())]
    columns, rows = np.nonzero(counts)
    if len(columns):
        width, height = (svg.RIGHT - svg.LEFT) / len(counts), (svg.BOTTOM - svg.TOP) / len(counts)
        centres = [format_number(float(centre)) for centre in (edges[1:] + edges[:-1]) / 2]
        numbers = counts[columns, rows]
        for column, row, n, shade in zip(columns, rows, numbers, svg.shade_classes(numbers)[0], strict=True):
            words = f"actual about {centres[column]}, predicted about {centres[row]}: {pluralise(int(n), 'record')}"
            parts.append(svg.heat_cell((x(edges[column]), y(edges[row + 1])), width, height, int(shade), words))
    parts.append(svg.path([(x(low), y(low)), (x(high), y(high))], class_="marker"))
    error = np.abs(predicted - truth)
    half = format_number(float(np.median(error)))
    summary = f"Half of the {len(truth):,} test records have an error of at most {half}."
    title, note = "Predictions against actual values", charts.hidden_note(len(truth) - int(counts.sum()), "cells")
    caption = f"{summary} Darker cells hold more records; on the diagonal both values are equal.{note}"
    errors = {share: format_number(float(np.quantile(error, share))) for share in (0.5, 0.9)}
    table = tuple((f"{format_percent(share)} of records", most) for share, most in errors.items())
    return Figure(title, caption, svg.image(title, summary, parts), ("share", "error at most"), table)


def confusion_table(test: pl.DataFrame) -> PageTable | None:
    """Count the test records of the most common classes by prediction, without classes of very few records."""
    enough = pl.col("count") >= charts.MIN_RECORDS_SHOWN
    sizes = test[TRUTH_COLUMN].value_counts(sort=True).filter(enough).head(MAX_CLASSES)
    names = sorted(sizes.to_series(0).to_list())
    if not names:
        return None
    pairs = Counter(zip(test[TRUTH_COLUMN].to_list(), test[PREDICTED_COLUMN].to_list(), strict=True))
    right = float((test[TRUTH_COLUMN] == test[PREDICTED_COLUMN]).sum()) / max(len(test), 1)
    left = test[TRUTH_COLUMN].n_unique() - len(names)
    note = f"{format_percent(right)} of {pluralise(len(test), 'test record')} are classified correctly."
    note += f" Not shown: {left:,} rarer {'class' if left == 1 else 'classes'}." if left else ""
    rows = tuple((true, *(_masked_count(pairs[true, found]) for found in names)) for true in names)
    return PageTable(
        "Predicted against actual classes", ("actual", *(f"predicted {name}" for name in names)), rows, note
    )


def _masked_count(records: int) -> str:
    return f"fewer than {charts.MIN_RECORDS_SHOWN}" if 0 < records < charts.MIN_RECORDS_SHOWN else f"{records:,}"


def calibration_figure(test: pl.DataFrame) -> Figure | None:
    """Draw the accuracy by confidence; None where there are too few test records."""
    sure, right = _confidence(test)
    if len(sure) < charts.MIN_RECORDS_SHOWN:
        return None
    edges = np.linspace(float(sure.min()), 1.0, CONFIDENCE_BINS + 1)
    bins = np.clip(np.searchsorted(edges, sure, side="right") - 1, 0, CONFIDENCE_BINS - 1)
    rows = []
    for here in (bins == number for number in range(CONFIDENCE_BINS)):
        if here.sum() >= charts.MIN_RECORDS_SHOWN:
            stated, accuracy = float(sure[here].mean()), float(right[here].mean())
            text = f"{format_percent(accuracy)} of {int(here.sum()):,} correct"
            rows.append(ChartRow(f"confidence {format_percent(stated)}", accuracy, text))
    caption = "Of the records that the model classifies with a confidence of 90 %, 90 % should be correct."
    labels = charts.ChartLabels("Calibration", caption, "share of correct predictions", ("confidence", "correct"))
    return charts.rows_figure(rows, labels, bars=True) if rows else None


MAX_EFFECTS = 5  # partner records with a bar of their own


def format_rounded(value: float) -> str:
    """Return three significant digits: a label in full may identify a record.

    >>> format_rounded(512_345.0), format_rounded(4.5)
    ('512,000', '4.5')
    """
    return format_number(float(f"{value:.3g}"))


def format_signed(value: float) -> str:
    """Return a difference with its sign, rounded.

    >>> format_signed(12.5), format_signed(-0.25)
    ('+12.5', '−0.25')
    """
    return f"{'−' if value < 0 else '+'}{format_rounded(abs(value))}"


def plot_explanation(explanation: Explanation, truth: Any = None) -> FigureGroup:
    """Return the chart of an explanation for a notebook."""
    return FigureGroup(
        "Why this prediction", (waterfall_figure("Why this prediction", explanation, truth, "prediction"),)
    )


def waterfall_figure(name: str, found: Explanation, truth: Any, label: str) -> Figure:
    """Draw how the partner records lead from the average to the prediction of one record."""
    value = found.average
    rows, table = [ChartRow("with average partner records", value, format_rounded(value))], []
    if not found.without:  # it has no secondary, or none whose records it may show
        rows.clear()
    groups = [(f"{one.secondary} no. {one.partner}", [one]) for one in found.partners[:MAX_EFFECTS]]
    for secondary in found.without:
        rest = [one for one in found.partners[MAX_EFFECTS:] if one.secondary == secondary]
        groups += [(f"{secondary}, {pluralise(len(rest), 'further record')}", rest)] if rest else []
    for group, members in groups:
        effect = sum(one.effect for one in members)
        text, start = format_signed(effect), value
        value += effect
        shown = group
        if len(members) == 1:
            shown = _partner_label(members[0], charts.name_room(text), alone=len(found.without) == 1)
        rows.append(ChartRow(shown, value, text, origin=start))
        known = (members[0].similarity, members[0].weight, members[0].match) if len(members) == 1 else (None,) * 3
        table.append((group, text, *("" if fact is None else format_number(fact) for fact in known)))
    changed = "without" if found.away else "with average records of"
    left = [f"{changed} {secondary}: {format_rounded(v)}" for secondary, v in found.without.items()]
    if found.lower is None or found.upper is None:  # a class
        axis, interval, baseline = f"probability of {found.prediction}", None, None
        caption = f"Predicted {found.prediction} ({format_percent(found.value)})"
        caption += "" if truth is None else f", actual {truth}"
    else:
        axis, interval, baseline = label, (found.lower, found.upper), None if truth is None else float(truth)
        caption = f"Predicted {format_rounded(found.value)}"
        caption += "" if baseline is None else f", actual {format_rounded(baseline)} (short line)"
    text = format_rounded(found.value)
    rows.append(ChartRow("prediction", found.value, text, interval, baseline=baseline, strong=True))
    labels = charts.ChartLabels(name, f"{'; '.join([caption, *left])}.", axis, ("", ""))
    head = ("partner record", "effect", "similarity", "weight", "match")
    return replace(charts.rows_figure(rows, labels), head=head, rows=tuple(table))


def _partner_label(one: PartnerEffect, room: int, *, alone: bool) -> str:
    """Return a partner record with similarity and weight in ``room`` letters; a secondary alone needs no name."""
    weight = "" if one.weight is None else f", weight {one.weight:.2g}"
    facts = f"no. {one.partner}: similarity {one.similarity:.2g}{weight}".replace("-", "−")
    if alone:
        return facts
    name = max(3, room - len(facts) - 1)
    return f"{one.secondary if len(one.secondary) <= name else f'{one.secondary[: name - 1]}…'} {facts}"


def _confidence(test: pl.DataFrame) -> tuple[Floats, Floats]:
    """Return the confidence of every test record that has one, and 1.0 where its prediction is correct."""
    test = test.filter(pl.col(CONFIDENCE_COLUMN).is_finite())
    right = (test[TRUTH_COLUMN] == test[PREDICTED_COLUMN]).to_numpy().astype(np.float64)
    return test[CONFIDENCE_COLUMN].to_numpy(), right


def calibration_warnings(test: pl.DataFrame, log_loss: float | None) -> Iterator[str]:
    """Warn where the probabilities of a classifier are not useful; ``log_loss`` is that of these test records."""
    sure, right = _confidence(test)
    if not len(sure):
        return
    stated, accuracy = float(sure.mean()), float(right.mean())
    doubt = GAP_DEVIATIONS * math.sqrt(accuracy * (1.0 - accuracy) / len(sure))
    if stated - accuracy > max(MAX_CALIBRATION_GAP, doubt):
        gap = f"its mean confidence is {format_percent(stated)}, but {format_percent(accuracy)} of its predictions"
        advice = "Do not use its confidences as probabilities; fewer epochs may help."
        yield f"The model is overconfident: {gap} are correct. {advice}"
    prior = class_prior_log_loss(test.filter(pl.col(CONFIDENCE_COLUMN).is_finite())[TRUTH_COLUMN])
    if log_loss is not None and log_loss > prior:
        worse = f"The log loss of {format_number(log_loss)} is worse than {format_number(prior)}, the log loss of"
        yield f"{worse} predicting the class frequencies for every record: this model's probabilities are not useful."


def class_prior_log_loss(truth: pl.Series) -> float:
    """Return the log loss of predicting the class frequencies for every record.

    >>> round(class_prior_log_loss(pl.Series(["a", "b"] * 50)), 3)
    0.693
    """
    shares = truth.value_counts()["count"].to_numpy() / len(truth)
    return float(-(shares * np.log(shares)).sum())


def group_figures(groups: list[GroupError], *, numbers: bool) -> list[Figure]:
    """Draw the error by group for the columns whose groups differ most."""
    by: dict[str, list[GroupError]] = {}
    for group in groups:
        by.setdefault(group.by, []).append(group)

    def spread(name: str) -> float:
        errors = [group.error for group in by[name]]
        return (max(errors) - min(errors)) / (max(errors) or 1.0)

    bias = " The bias is the mean of predicted minus actual." if numbers else ""
    axis = "root mean squared error" if numbers else "share of wrong predictions"
    figures = []
    for name in sorted((name for name in by if len(by[name]) > 1), key=lambda name: -spread(name))[:MAX_GROUP_COLUMNS]:
        rows = []
        for group in by[name]:
            text = format_percent(group.error)
            if group.bias is not None:
                text = f"{format_number(group.error)}, bias {'+' if group.bias > 0 else ''}{format_number(group.bias)}"
            interval = None if group.low is None or group.high is None else (group.low, group.high)
            rows.append(ChartRow(f"{group.group} ({group.records:,})", group.error, text, interval))
        caption = f"{_judge_groups(name, by[name])} The number of test records is in brackets.{bias}"
        labels = charts.ChartLabels(f"Error by {name}", caption, axis, (name, "error"))
        figures.append(charts.rows_figure(rows, labels, include=(0.0,)))
    return figures


def _judge_groups(name: str, groups: Sequence[GroupError]) -> str:
    """Say where the error is largest, if that is certain: the interval is above that of another group."""
    worst = max(groups, key=lambda group: group.error)
    ends = [group.high for group in groups if group.high is not None]
    if worst.low is None or not ends:
        return "Without intervals, differences may be chance."
    if worst.low > min(ends):
        return f"The error is larger where {name} is {worst.group} than in another group (95 % intervals)."
    return "The 95 % intervals of all groups overlap: the differences may be chance."


# What the gates of a trained FedSim model learned.

FLAT_CHANGE = 0.05  # of the weight, between the least and the most similar of the usual pairs
USUAL_PAIRS = (0.05, 0.95)  # quantiles of their similarity: nine of ten pairs
MAIN_SHARE = 0.8  # of the pairs, from which on the rest is an exception


def weight_figure(curve: WeightCurve, pairs: Floats | None = None) -> Figure:
    """Draw the learned weight over the scaled similarity, with a verdict.

    Parameters
    ----------
    curve
        The weight gate of a secondary, or of one of its fields.
    pairs
        The similarities of the pairs it is used for; by default the curve counts evenly from end to end.
    """
    x = svg.x_scale(float(curve.similarity[0]), float(curve.similarity[-1]))
    y = svg.y_scale(*svg.nice_range(min(0.0, float(curve.weight.min())), float(curve.weight.max())))
    parts, caption = [], "The weight gate multiplies the outputs of a partner record by this factor."
    if pairs is not None:
        left, right = (x(float(end)) for end in np.nanquantile(pairs, USUAL_PAIRS).clip(x.low, x.high))
        size = {"width": round(right - left, 2), "height": svg.BOTTOM - svg.TOP}
        parts.append(svg.element("rect", class_="outer", x=left, y=svg.TOP, **size))
        caption += " Nine of ten pairs are in the shaded range."
    line = svg.path([(x(s), y(w)) for s, w in zip(curve.similarity, curve.weight, strict=True)], class_="line")
    numbers = [tuple(map(format_number, pair)) for pair in zip(curve.similarity, curve.weight, strict=True)]
    hover = svg.hover_columns(
        svg.LinearScale(1, len(numbers), svg.LEFT, svg.RIGHT),
        [f"similarity {similarity}: weight {weight}" for similarity, weight in numbers],
        svg.TOP,
    )
    title, verdict = f"Weight by similarity: {curve.party}", judge_weights(curve, pairs)
    parts += [svg.left_axis(y, "weight"), line, svg.bottom_axis(x, "similarity, scaled"), hover]
    rows = tuple(numbers[at] for at in np.linspace(0, len(numbers) - 1, 7).astype(int))
    picture = svg.image(title, verdict, parts)
    return Figure(title, f"{verdict} {caption}", picture, ("similarity", "weight"), rows)


def judge_weights(curve: WeightCurve, pairs: Floats | None = None) -> str:
    """Say how the weight changes with similarity, for which share of the pairs, and what that means.

    >>> rising = WeightCurve("a", np.linspace(-3, 3, 7), np.linspace(0.2, 0.8, 7))
    >>> judge_weights(rising, np.linspace(-1, 1, 100))[:55]
    'The weight rises with similarity for 100 % of the pairs'
    """
    unit = "curve" if pairs is None else "pairs"
    known = curve.similarity if pairs is None else pairs[np.isfinite(pairs)]
    low, high = np.quantile(known, USUAL_PAIRS)
    between = curve.similarity[(curve.similarity > low) & (curve.similarity < high)]
    weights = np.interp([low, *between, high], curve.similarity, curve.weight)
    change = float(np.ptp(weights)) / max(float(np.abs(weights).max()), np.finfo(float).tiny)
    steps = np.searchsorted(curve.similarity, known, side="right").clip(1, len(curve.weight) - 1) - 1
    rising = float((np.diff(curve.weight)[steps] > 0).mean())
    ends = (f"{format_number(weights[at])} at similarity {format_number(end)}" for at, end in ((0, low), (-1, high)))
    course = f"of the {unit}, from {' to '.join(ends)}."
    if change <= FLAT_CHANGE:
        verdict = (
            f"The weight is flat: it changes by {format_percent(change)} over 90 % of the {unit}. Similarity hardly "
        )
        verdict += "changes how much a partner record counts; only its rank does, in the merge gate."
    elif rising >= MAIN_SHARE:
        verdict = f"The weight rises with similarity for {format_percent(rising)} {course} "
        verdict += "The gate favours similar partner records."
    elif rising <= 1.0 - MAIN_SHARE:
        verdict = f"The weight falls with similarity for {format_percent(1.0 - rising)} {course} "
        verdict += (
            "That alone does not make similar partner records count less: the merge gate weights every rank again."
        )
    else:
        top = format_number(float(curve.similarity[int(curve.weight.argmax())]))
        verdict = (
            f"The weight rises with similarity for {format_percent(rising)} of the {unit} and falls for the rest; "
        )
        verdict += f"it is largest at similarity {top}."
    return verdict


def importance_figure(importance: MergeImportance) -> Figure:
    """Draw a heat map with one column per rank (the most similar on the left) and one row per output."""
    values = importance.values[::-1]  # (K, R), most similar first
    title = f"Contribution by rank: {importance.party}"
    by_rank = values.sum(axis=1) / max(values.sum(), np.finfo(float).tiny)
    nearest = by_rank[: max(1, len(values) // 10)].sum()
    description = f"The most similar tenth of the partner records contributes {format_percent(nearest)}."
    shades, bounds = svg.shade_classes(values)
    width, height = (svg.RIGHT - svg.LEFT) / len(values), (svg.BOTTOM - svg.TOP) / values.shape[1]
    parts = [
        svg.heat_cell(
            (svg.LEFT + width * rank, svg.TOP + height * output),
            width + 0.2,
            height + 0.2,
            int(shades[rank, output]),
            f"rank {rank + 1}, output {output + 1}: {format_number(float(values[rank, output]))}",
        )
        for rank, output in np.ndindex(values.shape)
    ]
    labels: dict[float, str] = {rank: f"{rank:,}" for rank in charts.rank_ticks(len(values))}
    parts.append(svg.bottom_axis(svg.x_scale(0.5, len(values) + 0.5), charts.RANK_AXIS, labels))
    parts.append(svg.side_title(f"{values.shape[1]} outputs of a pair", (svg.TOP + svg.BOTTOM) / 2))
    parts.append(svg.shade_legend([f"{float(start):.2g}" for start in (values.min(), *bounds)], svg.HEIGHT))
    caption = f"Integrated gradients of the merge gate, averaged over records. {description}"
    rows = tuple((f"{rank:,}", f"{100 * by_rank[rank - 1]:.1f} %") for rank in charts.rank_ticks(len(values)))
    head = ("rank", "share of the contribution")
    return Figure(title, caption, svg.image(title, description, parts, svg.HEIGHT + 30), head, rows)


def plot_gates(curves: Sequence[WeightCurve], importances: Sequence[MergeImportance]) -> FigureGroup:
    """Return the weight curve and the heat map of the merge gate of every secondary."""
    return FigureGroup("Gates", (*map(weight_figure, curves), *map(importance_figure, importances)))


# The ladder of methods that `fedsim compare` trains.


def ladder_figures(ladder: run_data.LadderResults) -> list[Figure]:
    """Draw the gains and the rungs of every split, that of the headline first."""
    shares = [_shares_figure(ladder, split) for split in ladder.splits if ladder.partners]
    gains, rungs = ([draw(ladder, split) for split in ladder.splits] for draw in (_gains_figure, _rungs_figure))
    known = {side.split for side in ladder.sides}
    sides = [_sides_figure(ladder, split) for split in ladder.splits if split in known]
    return [*sides, *gains, *shares, *rungs]


SIDE_NAMES = {"alone": "without partner", "placebo": "with a fake partner", "together": "with partner"}
SIDE_TAGS = {"alone": "without", "placebo": "fake", "together": "with", "pooled": "joined"}


def _format_interval(value: float, low: float, high: float) -> str:
    return f"{format_number(value)} ({format_number(low)} to {format_number(high)})"


def _sides_figure(ladder: run_data.LadderResults, split: str) -> Figure:
    """Draw what the headline compares: the best models without the partner, with a fake one and with it."""
    rows = [
        ChartRow(
            SIDE_NAMES[side.key],
            side.estimate,
            _format_interval(side.estimate, side.low, side.high),
            (side.low, side.high),
            strong=side.key == "together",
        )
        for side in ladder.sides
        if side.split == split
    ]
    better = "lower" if ladder.lower_is_better else "higher"
    caption = f"Test {ladder.metric_text} with 95 % intervals; {better} is better. A fake partner has the same links, "
    caption += "but rows of other records: what it seems to add is not in the partner's data. Intervals may overlap "
    caption += "although the difference, measured on the same records, is clear: the next chart shows the difference."
    title = f"With and without the partner, {split} split"
    labels = charts.ChartLabels(title, caption, ladder.metric_text, ("", ladder.metric))
    found = {side.key: " or ".join(side.models) for side in ladder.sides if side.split == split}
    notes = tuple(f"{SIDE_NAMES[key]}: {models}" for key, models in found.items())
    return replace(charts.rows_figure(rows, labels), notes=notes)


def _shares_figure(ladder: run_data.LadderResults, split: str) -> Figure:
    rows = []
    for one in (share for share in ladder.partners if share.split == split):
        parts = {"": (one.estimate, one.low, one.high), ", features beyond links": tuple(one.features.values())}
        for suffix, (estimate, low, high) in parts.items():
            text = _format_interval(estimate, low, high)
            row = ChartRow(one.secondary + suffix, estimate, text, (low, high), strong=not suffix)
            rows.append(row)
    caption = "What each secondary adds: the mean over all orders in which they can join (Shapley value), so that the "
    caption += "parts add up to the contribution; and what is lost if a placebo replaces its features."
    labels = charts.ChartLabels(
        f"Contribution by secondary, {split} split",
        caption,
        f"gain in {ladder.metric_text}; right of zero is better",
        ("secondary", "gain (95 % interval)"),
    )
    return charts.rows_figure(rows, labels, include=(0.0,))


def _gains_figure(ladder: run_data.LadderResults, split: str) -> Figure:
    gains = [gain for gain in ladder.gains if gain.split == split]
    rows = [
        ChartRow(
            STEP_NAMES.get(gain.key, gain.key),
            gain.estimate,
            _format_interval(gain.estimate, gain.low, gain.high),
            (gain.low, gain.high),
            strong=gain.key == "contribution",
        )
        for gain in gains
    ]
    caption = "The gain of each step over the one before it, with its 95 % interval. An interval that includes zero "
    caption += "means that no gain was shown."
    axis = f"gain in {ladder.metric_text}; right of zero is better"
    labels = charts.ChartLabels(f"Gain by step, {split} split", caption, axis, ("step", "gain (95 % interval)"))
    notes = (ladder.models,) if ladder.models and split == ladder.splits[0] else ()
    return replace(charts.rows_figure(rows, labels, include=(0.0,)), notes=notes)


def _rungs_figure(ladder: run_data.LadderResults, split: str) -> Figure:
    rows, numbers = [], []
    for rung in (rung for rung in ladder.rungs if rung.split == split):
        interval = None if rung.low is None or rung.high is None else (rung.low, rung.high)
        name, text = f"{SIDE_TAGS[rung_side(rung.key)]}: {rung.name}", format_number(rung.mean)
        words = text if interval is None else _format_interval(rung.mean, *interval)
        points = rung.values if ladder.seeds > 1 else ()
        strong = rung_side(rung.key) == "together"
        rows.append(ChartRow(name, rung.mean, text, interval, points, strong=strong, tooltip=f"{name}: {words}"))
        numbers.append((name, words))
    better = "lower" if ladder.lower_is_better else "higher"
    seeds = f"mean of {ladder.seeds} seeds (dots)" if ladder.seeds > 1 else "one seed"
    caption = f"Test {ladder.metric_text}, {seeds}, with 95 % intervals; {better} is better. 'with' uses the partner's "
    caption += "data, 'without' the primary's own, 'fake' a partner that cannot help: a placebo's rows are shuffled, "
    caption += "shuffled links point to the partner records of others. 'joined' has both tables in one place."
    title, head = f"All methods, {split} split", ("method", ladder.metric)
    labels = charts.ChartLabels(title, caption, ladder.metric_text, head)
    return replace(charts.rows_figure(rows, labels), rows=tuple(numbers))
