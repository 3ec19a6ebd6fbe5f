"""The comparison ladder: the primary alone, with the partner and with placebo partners, and the partner's contribution in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedsim.contribution.arrays import AnyArray, SplitArrays
from fedsim.contribution.bootstrap import (
    BootstrapScores,
    Interval,
    Measure,
    SeedPredictions,
    bootstrap_scores,
    measure_for_task,
)
from fedsim.contribution.result_store import ResultStore
from fedsim.contribution.rungs import MessageCallback, Rung, RungTrainer, result_key, run_training, train_missing
from fedsim.training.labels import Metrics, selection_key

# What a gain means, in one sentence and in the user's unit


STEP_MEANINGS = {
    "identifiers": "the primary's own identifiers, used as features without any partner",
    "links": "the links, beyond the primary's own identifiers and whatever the partner's features say",
    "features": "what the partner's features say, beyond the links",
    "total": "everything together, over the primary's own features alone",
}
METRIC_NAMES = {"rmse": "error", "auc": "area under the curve", "accuracy": "share of correct answers"}


@dataclass(frozen=True)
class GainUnit:
    """What a gain is counted in: a metric and a unit; where nobody named one, the ``label`` stands in its place."""

    metric: str
    unit: str
    label: str = ""


def gain_sentence(key: str, gain: Interval, scale: GainUnit) -> str:
    """What one step of the ladder brings.

    >>> gain_sentence("features", Interval(1.25, 0.5, 2.0), GainUnit("rmse", "S$"))
    "What the partner's features say, beyond the links: 1.25 S$ less error (0.5 to 2)."
    """
    meaning = STEP_MEANINGS[key]
    if gain.covers_zero:
        range_ = f"{format_number(gain.low)} to {format_number(gain.high)}"
        return f"{meaning[0].upper()}{meaning[1:]}: nothing that can be told from chance ({range_})."
    return f"{meaning[0].upper()}{meaning[1:]}: {_format_change(gain, scale)} ({_format_interval(gain)})."


def contribution_sentence(worth: Interval, ends: tuple[float, float], scale: GainUnit, split: str) -> str:
    """What the partner is worth: the sentence at the top; ``ends`` are the scores without and with it.

    >>> contribution_sentence(Interval(0.6, 0.5, 0.7), (3.1, 2.5), GainUnit("rmse", "age", label="age"), "random")[:69]
    'This partner is worth 0.6 less error in age (95 % interval 0.5 to 0.7'
    """
    found = f"{_format_change(worth, scale)} (95 % interval {_format_interval(worth)})"
    scores = f"{format_number(ends[0], 4)} against {format_number(ends[1], 4)} ({split} split)"
    beyond = "the best the primary can do alone (own identifiers included, chosen by the validation records)"
    if worth.covers_zero:
        return f"No worth of this partner can be told from chance: {found} than {beyond}, {scores}."
    if worth.high < 0:
        return f"This partner does harm, or networks trained too short: {found} than {beyond}, {scores}."
    return f"This partner is worth {found} than {beyond}, {scores}."


def format_number(value: float, digits: int = 3) -> str:
    """Figures that count, all of them before the point, thousands set apart.

    >>> [format_number(value) for value in (87600.4, -1234.5, 12.345, 0.5, 0.000012)]
    ['87,600', '-1,234', '12.3', '0.5', '1.2e-05']
    """
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def _format_change(gain: Interval, scale: GainUnit) -> str:
    better = gain.estimate >= 0
    direction = "less" if better == (scale.metric == "rmse") else "more"
    size = format_number(abs(gain.estimate))
    if scale.metric != "rmse":
        return f"{size} {direction} {METRIC_NAMES[scale.metric]}"
    if scale.unit in ("", scale.label):
        return f"{size} {direction} error" + (f" in {scale.label}" if scale.label else "")
    times = "x " if scale.unit[:1].isdigit() else ""  # of a unit such as 1000 S$
    return f"{size} {times}{scale.unit} {direction} error"


def _format_interval(gain: Interval) -> str:
    """The interval in the direction of the change: above zero where it is sure, be it for better or worse."""
    low, high = (gain.low, gain.high) if gain.estimate >= 0 else (-gain.high, -gain.low)
    return f"{format_number(low + 0.0)} to {format_number(high + 0.0)}"


# The honest ladder: what the primary can do alone, with the partner, and with partners that cannot help
#
# The gain is split in three: what the primary's own identifiers would have told it without anybody, what the links say
# beyond that (a partner with shuffled features keeps them), and what the partner's features say. The partner's worth is
# counted from the best that the primary can do alone: for every seed the validation records choose between a
# perceptron, boosted trees and FedSim's own network with links that lead nowhere, with and without the primary's own
# identifiers. Without the last, a network that happens to suit the primary's own columns would be booked as the
# partner's merit. With the partner they choose between all methods.


LADDER_FORMAT = 1
SOLO, SOLO_WITH_IDENTIFIERS, FEDSIM_PLACEBO, FEDSIM_WITH_IDENTIFIERS = (
    "solo",
    "solo-identifiers",
    "fedsim-identifiers-placebo",
    "fedsim-identifiers",
)
TREES_WITH_IDENTIFIERS, FEDSIM_SHUFFLED = "trees-identifiers", "fedsim-identifiers-shuffled"
RUNGS = (
    Rung(SOLO, "Solo", "solo"),
    Rung(SOLO_WITH_IDENTIFIERS, "Solo + own identifiers", "solo", inputs="identifiers"),
    Rung("trees", "Boosted trees", "trees"),
    Rung(TREES_WITH_IDENTIFIERS, "Boosted trees + own identifiers", "trees", inputs="identifiers"),
    Rung("exact", "Exact", "exact"),
    Rung("top1sim", "Top1Sim", "top1sim"),
    Rung("avgsim", "AvgSim", "avgsim"),
    Rung("featuresim", "FeatureSim", "featuresim"),
    Rung("fedsim", "FedSim", "fedsim"),
    Rung(FEDSIM_WITH_IDENTIFIERS, "FedSim + own identifiers", "fedsim", inputs="identifiers"),
    Rung("fedsim-placebo", "FedSim, placebo partner", "fedsim", partner="placebo"),
    Rung(
        FEDSIM_PLACEBO, "FedSim + own identifiers, placebo partner", "fedsim", partner="placebo", inputs="identifiers"
    ),
    Rung("fedsim-shuffled", "FedSim, shuffled links", "fedsim", partner="shuffled"),
    Rung(
        FEDSIM_SHUFFLED, "FedSim + own identifiers, shuffled links", "fedsim", partner="shuffled", inputs="identifiers"
    ),
)
STEPS = {
    "identifiers": (SOLO, SOLO_WITH_IDENTIFIERS),
    "links": (SOLO_WITH_IDENTIFIERS, FEDSIM_PLACEBO),
    "features": (FEDSIM_PLACEBO, FEDSIM_WITH_IDENTIFIERS),
    "total": (SOLO, FEDSIM_WITH_IDENTIFIERS),
}
WITHOUT_PARTNER = (SOLO, SOLO_WITH_IDENTIFIERS, "trees", TREES_WITH_IDENTIFIERS, "fedsim-shuffled", FEDSIM_SHUFFLED)
WITH_PARTNER = ("exact", "top1sim", "avgsim", "featuresim", "fedsim", FEDSIM_WITH_IDENTIFIERS)
ALONE, TOGETHER = "alone", "together"  # what the validation records chose of them
BOOTSTRAP_SEED = 2022


@dataclass(frozen=True)
class LadderTraining:
    """What all networks of a ladder share; trees have their own settings."""

    preset: str = "modern"
    epochs: int | None = None
    batch: int | None = None
    rate: float | None = None
    patience: int | None = None

    def rungs(self, rungs: Sequence[Rung] = RUNGS) -> list[Rung]:
        """The rungs, trained in this way."""
        settings = asdict(self)
        return [rung if rung.method == "trees" else replace(rung, **settings) for rung in rungs]


@dataclass(frozen=True, eq=False)
class Ladder:
    """All trainings of a ladder, by split, then by seed, with the test records they are judged by.

    ``lines`` has, for every rung's key and split, what is known of its trainings.
    """

    about: Mapping[str, Any]
    measure: Measure
    rungs: Sequence[Rung]
    judged: Mapping[str, Sequence[SeedPredictions]]
    lines: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]

    def partner(self, split: str) -> Interval:
        """What the partner is worth beyond the best that the primary can do alone."""
        drawings = self._drawn(split, [ALONE, TOGETHER])
        return drawings.gain(ALONE, TOGETHER, lower_is_better=self.measure.lower_is_better)

    def described(self) -> dict[str, Any]:
        """The ladder in types that JSON has."""
        needed = sorted({ALONE, TOGETHER, *(name for step in STEPS.values() for name in step)})
        bands = {split: self._drawn(split, needed) for split in self.judged}
        last = list(self.judged)[-1]
        worth = bands[last].gain(ALONE, TOGETHER, lower_is_better=self.measure.lower_is_better)
        ends = bands[last].whole[ALONE], bands[last].whole[TOGETHER]
        seeds = next(iter(self.judged.values()))
        return {
            "format": LADDER_FORMAT,
            "job": self.about["name"],
            **{key: self.about[key] for key in ("hash", "truth") if key in self.about},
            "unit": self.about["unit"],
            "metric": self.measure.name,
            "task": self.about["task"],
            "lower_is_better": self.measure.lower_is_better,
            "seeds": len(seeds),
            "records": len(seeds[0].labels),
            "worth": contribution_sentence(worth, ends, self._scale, last),
            "chosen": {side: self._chosen(side, last) for side in (ALONE, TOGETHER)},
            "rungs": [self._rung(rung, split) for split in self.judged for rung in self.rungs],
            "gains": [self._gain(key, split, band) for split, band in bands.items() for key in STEPS],
        }

    def _chosen(self, side: str, split: str) -> list[str]:
        """The rung whose predictions stand for a side, for every seed."""
        return [
            next(rung.key for rung in self.rungs if judged.predictions[rung.key] is judged.predictions[side])
            for judged in self.judged[split]
        ]

    def _drawn(self, split: str, names: Sequence[str]) -> BootstrapScores:
        seeds = [
            replace(judged, predictions={name: judged.predictions[name] for name in names})
            for judged in self.judged[split]
        ]
        return bootstrap_scores(seeds, self.measure, np.random.default_rng(BOOTSTRAP_SEED))

    def _rung(self, rung: Rung, split: str) -> dict[str, Any]:
        values = [
            self.measure.prepared(judged.predictions[rung.key], judged.labels, np.arange(len(judged.labels))).score(
                np.ones(len(judged.labels))
            )
            for judged in self.judged[split]
        ]
        return {
            "key": rung.key,
            "name": rung.name,
            "split": split,
            "values": values,
            "mean": float(np.mean(values)),
            "deviation": float(np.std(values, ddof=min(1, len(values) - 1))),
            "seconds": float(np.mean([line["seconds"] for line in self.lines[rung.key, split]])),
        }

    def _gain(self, key: str, split: str, band: BootstrapScores) -> dict[str, Any]:
        gain = band.gain(*STEPS[key], lower_is_better=self.measure.lower_is_better)
        return {"key": key, "split": split, **asdict(gain), "says": gain_sentence(key, gain, self._scale)}

    @property
    def _scale(self) -> GainUnit:
        return GainUnit(self.measure.name, self.about["unit"], self.about.get("label", ""))


def choose_best_predictions(
    found: Mapping[str, AnyArray], validation: Mapping[str, Metrics], measure: Measure
) -> dict[str, AnyArray]:
    """The predictions that the validation records choose, without the partner and with it."""

    def best(names: Sequence[str]) -> AnyArray:
        known = {name: validation[name] for name in names if name in found}
        return found[best_by_measure(measure, known)]

    return {ALONE: best(WITHOUT_PARTNER), TOGETHER: best(WITH_PARTNER)}


def best_by_measure(measure: Measure, validation: Mapping[str, Metrics]) -> str:
    """The training that is best by the ladder's own measure, where equal by what training itself goes by.

    That alone counts where a training of an earlier release was not measured so.
    """
    measured = all(measure.name in metrics for metrics in validation.values())
    sign = -1.0 if measure.lower_is_better else 1.0

    def rank(name: str) -> tuple[float, ...]:
        metrics = validation[name]
        return (sign * metrics[measure.name], *selection_key(metrics)) if measured else selection_key(metrics)

    return max(validation, key=rank)


def train_ladder(
    cases: Iterable[SplitArrays],
    rungs: Sequence[Rung],
    results: ResultStore,
    tell: MessageCallback,
    train_rung: RungTrainer = run_training,
) -> Ladder:
    """Train what is missing of a ladder, and gather all of it."""
    judged: dict[str, list[SeedPredictions]] = {}
    lines: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    about: dict[str, Any] = {}
    measure: Measure | None = None
    for arrays in cases:
        train_missing([arrays], rungs, results, tell, train_rung)
        about, test, split = arrays.about, arrays.split.test, arrays.about["split"]
        measure = measure or measure_for_task(about["task"], arrays.labels)
        keys = {rung.key: result_key(rung, arrays) for rung in rungs}
        found = {name: results.predictions(key) for name, key in keys.items()}
        known = {name: results.line(key) for name, key in keys.items()}
        validation = {name: line["validation"] for name, line in known.items()}
        chosen = {**found, **choose_best_predictions(found, validation, measure)}
        judged.setdefault(split, []).append(SeedPredictions(arrays.labels[test], arrays.groups[test], chosen))
        for name, line in known.items():
            lines.setdefault((name, split), []).append(line)
    if measure is None:
        raise ValueError("no cases")  # pragma: no cover - callers ask for one seed at least
    return Ladder(about, measure, rungs, judged, lines)
