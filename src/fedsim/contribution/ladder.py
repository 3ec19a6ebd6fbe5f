"""The comparison ladder: the primary alone, with the partner and with placebo partners, and what the partner adds.

The gain is split in three: the primary's own identifiers, which it could have used without anybody; the links beyond
that (a partner with shuffled features keeps them); and the partner's features. The partner's contribution is counted
from the best that the primary can do alone: for every seed the validation records choose between a perceptron, boosted
trees and FedSim's own network with random links, with and without the primary's own identifiers. Without the last, a
network that happens to suit the primary's own columns would be credited to the partner. With the partner, the
validation records choose between all methods.

Letters: n test records, G groups of records that are drawn together, S seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedsim.contribution.rungs import ResultStore, Rung, RungTrainer, SplitArrays, run_training, train_missing
from fedsim.training.data import Metrics, pair_win_rate, selection_key
from fedsim.types import AnyArray, Floats, Integers

# Metrics of predictions in which every group of records has a weight. A scorer computes all that does not depend on the
# weights (G,) once, because a bootstrap asks for a score in every resample.


Scorer = Callable[[Floats], float]


@dataclass(frozen=True)
class Measure:
    """A metric; ``scorer`` takes predictions, labels and every record's place among the groups, (n,)."""

    name: str
    lower_is_better: bool
    scorer: Callable[[AnyArray, AnyArray, Integers], Scorer]


def _mean_scorer(values: AnyArray, group: Integers, power: float = 1.0) -> Scorer:
    sums, counts = np.bincount(group, weights=values), np.bincount(group).astype(np.float64)  # (G,), (G,)
    return lambda weight: float((weight @ sums / (weight @ counts)) ** power)


def _auc_scorer(predictions: AnyArray, labels: AnyArray, group: Integers) -> Scorer:
    probability = predictions[:, 1]
    order = np.argsort(probability, kind="stable")
    rises = np.diff(probability[order], prepend=probability[order[0]]) > 0
    level = np.cumsum(rises, dtype=np.int64)  # (n,), the same for ties
    second, group = labels[order] == 1, group[order]

    def score(weight: Floats) -> float:
        of_record, levels = weight[group], int(level[-1]) + 1
        ones = np.bincount(level, weights=of_record * second, minlength=levels)
        zeros = np.bincount(level, weights=of_record * ~second, minlength=levels)
        return pair_win_rate(ones, zeros)

    return score


RMSE = Measure("rmse", True, lambda pred, y, group: _mean_scorer(np.square(pred.astype(np.float64) - y), group, 0.5))
ACCURACY = Measure(  # labels count columns of the predictions
    "accuracy", False, lambda pred, y, group: _mean_scorer((pred.argmax(axis=1) == y).astype(np.float64), group)
)
AUC = Measure("auc", False, _auc_scorer)


def measure_for_task(task: str, labels: AnyArray) -> Measure:
    """Return the metric of a ladder: RMSE for numbers, AUC for two classes, accuracy for more."""
    if task == "regression":
        return RMSE
    return AUC if len(np.unique(labels)) == 2 else ACCURACY


# Paired bootstrap: test records and training seeds are resampled, the same for all trainings that are compared, so what
# they have in common cancels out.
#
# Records with equal identifiers are resampled together, because they are hardly separate evidence. A resample has as
# many seeds as there are, with repetition, and as many groups of test records; a group counts as often in every seed
# that tests it, so that seeds which share test records are not taken for independent evidence. Where every seed tests
# other records the intervals are rather too wide, because the records differ from seed to seed as well.


RESAMPLES = 1000
CONFIDENCE_PERCENT = 95.0


@dataclass(frozen=True, eq=False)
class SeedPredictions:
    """The test records of one seed: labels, groups (numbered alike in all seeds), and predictions by training."""

    labels: AnyArray
    groups: Integers
    predictions: Mapping[str, AnyArray]


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval."""

    estimate: float
    low: float
    high: float

    @property
    def covers_zero(self) -> bool:
        return self.low <= 0.0 <= self.high


@dataclass(frozen=True, eq=False)
class BootstrapScores:
    """Scores of every training: on all records (mean over seeds), and in every resample."""

    scores: dict[str, float]
    resamples: dict[str, Floats]

    def gain(self, before: str, after: str, *, lower_is_better: bool) -> Interval:
        """Return how much better ``after`` is than ``before``."""
        sign = 1.0 if lower_is_better else -1.0
        gains = sign * (self.resamples[before] - self.resamples[after])
        low, high = np.percentile(gains, [(100 - CONFIDENCE_PERCENT) / 2, (100 + CONFIDENCE_PERCENT) / 2])
        return Interval(sign * (self.scores[before] - self.scores[after]), float(low), float(high))


def bootstrap_scores(
    seeds: Sequence[SeedPredictions], measure: Measure, rng: np.random.Generator, draws: int = RESAMPLES
) -> BootstrapScores:
    """Resample seeds and records, and score every training each time."""
    names = list(seeds[0].predictions)
    groups = np.unique(np.concatenate([seed.groups for seed in seeds]))  # (G,)
    scorers = [_SeedScorer.of(seed, measure, groups) for seed in seeds]
    scores = np.mean([scorer.scores(np.ones(len(groups))) for scorer in scorers], axis=0)
    resamples = np.array([_resample_scores(scorers, len(groups), rng) for _ in range(draws)])
    return BootstrapScores(dict(zip(names, scores.tolist(), strict=True)), dict(zip(names, resamples.T, strict=True)))


@dataclass(frozen=True, eq=False)
class _SeedScorer:
    """One seed's trainings, and the places of its groups among all."""

    groups: Integers
    trainings: Sequence[Scorer]

    @classmethod
    def of(cls, seed: SeedPredictions, measure: Measure, groups: Integers) -> _SeedScorer:
        here, group = np.unique(seed.groups, return_inverse=True)
        trainings = [measure.scorer(predictions, seed.labels, group) for predictions in seed.predictions.values()]
        return cls(np.searchsorted(groups, here), trainings)

    def scores(self, weight: Floats) -> list[float]:
        return [score(weight[self.groups]) for score in self.trainings]


def _resample_scores(seeds: Sequence[_SeedScorer], groups: int, rng: np.random.Generator) -> Floats:
    """Return the mean scores of one resample, without seeds none of whose records were drawn."""
    while True:
        places = rng.integers(len(seeds), size=len(seeds))  # (S,)
        weight = np.bincount(rng.integers(groups, size=groups), minlength=groups).astype(np.float64)  # (G,)
        scores = [seeds[place].scores(weight) for place in places if weight[seeds[place].groups].any()]
        if scores:
            return np.asarray(np.mean(scores, axis=0))


# The rungs and steps of the ladder


LADDER_FORMAT = 1
SOLO, SOLO_WITH_IDENTIFIERS = "solo", "solo-identifiers"
FEDSIM_WITH_IDENTIFIERS, FEDSIM_PLACEBO = "fedsim-identifiers", "fedsim-identifiers-placebo"
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
ALONE, TOGETHER = "alone", "together"  # the rungs that the validation records chose of these
BOOTSTRAP_SEED = 2022

# Sentences


STEP_SUBJECTS = {
    "identifiers": "The primary's own identifiers, used as features without any partner,",
    "links": "The links, beyond the primary's own identifiers,",
    "features": "The partner's features, beyond the links,",
    "total": "Own identifiers, links and partner features together",
}
METRIC_NAMES = {"rmse": "error", "auc": "area under the curve", "accuracy": "accuracy"}


@dataclass(frozen=True)
class GainUnit:
    """The metric and unit of a gain; if the user named no unit, ``unit`` is the name of the label."""

    metric: str
    unit: str
    label: str = ""


def gain_sentence(key: str, gain: Interval, unit: GainUnit) -> str:
    """Say what one step of the ladder adds.

    >>> gain_sentence("features", Interval(1.25, 0.5, 2.0), GainUnit("rmse", "S$"))
    "The partner's features, beyond the links, reduce the error by 1.25 S$ (95 % interval 0.5 to 2)."
    >>> gain_sentence("links", Interval(0.25, -0.5, 1.0), GainUnit("auc", ""))
    "The links, beyond the primary's own identifiers, make no measurable difference (95 % interval -0.5 to 1)."
    """
    if gain.covers_zero:
        interval = f"{format_number(gain.low)} to {format_number(gain.high)}"
        return f"{STEP_SUBJECTS[key]} make no measurable difference (95 % interval {interval})."
    verb, change = _describe_change(gain, unit)
    return f"{STEP_SUBJECTS[key]} {verb} {change}."


def contribution_sentence(gain: Interval, ends: tuple[float, float], unit: GainUnit, split: str) -> str:
    """Say what the partner adds, the headline of a comparison; ``ends`` are the scores without and with it.

    >>> contribution_sentence(Interval(3.1, 2.2, 4.0), (15.6, 12.5), GainUnit("rmse", "S$"), "random")[:76]
    "The partner's data reduces the error by 3.1 S$ (95 % interval 2.2 to 4), fro"
    """
    verb, change = _describe_change(gain, unit)
    scores = f"from {format_number(ends[0], 4)} to {format_number(ends[1], 4)} ({split} split)"
    baseline = "compared with the best model of the primary alone, own identifiers included"
    if gain.covers_zero:
        return f"The partner's data makes no measurable difference: it {verb}s {change}, {scores}, {baseline}."
    hint = " It does not help, or the networks were trained for too few epochs." if gain.high < 0 else ""
    return f"The partner's data {verb}s {change}, {scores}, {baseline}.{hint}"


def format_number(value: float, digits: int = 3) -> str:
    """Format significant digits, with all those before the point and commas between thousands.

    >>> [format_number(value) for value in (87600.4, -1234.5, 12.345, 0.5, 0.000012)]
    ['87,600', '-1,234', '12.3', '0.5', '1.2e-05']
    """
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def _describe_change(gain: Interval, unit: GainUnit) -> tuple[str, str]:
    """Return a verb, and what changes by how much; the interval is in the direction of the verb."""
    verb = "reduce" if (gain.estimate >= 0) == (unit.metric == "rmse") else "increase"
    low, high = (gain.low, gain.high) if gain.estimate >= 0 else (-gain.high, -gain.low)
    what, size = METRIC_NAMES[unit.metric], format_number(abs(gain.estimate))
    if unit.metric == "rmse" and unit.unit not in ("", unit.label):
        size += f" x {unit.unit}" if unit.unit[0].isdigit() else f" {unit.unit}"  # of a unit such as 1000 S$
    elif unit.metric == "rmse" and unit.label:
        what += f" in {unit.label}"
    interval = f"{format_number(low + 0.0)} to {format_number(high + 0.0)}"
    return verb, f"the {what} by {size} (95 % interval {interval})"


# The ladder


@dataclass(frozen=True)
class LadderTraining:
    """Settings that all networks of a ladder share; trees have their own.

    Parameters
    ----------
    preset
        Networks, optimiser and sizes.
    epochs, batch, rate, patience, members
        As in :class:`fedsim.training.Config`; None keeps the preset's value.
    """

    preset: str = "modern"
    epochs: int | None = None
    batch: int | None = None
    rate: float | None = None
    patience: int | None = None
    members: int | None = None

    def rungs(self, rungs: Sequence[Rung] = RUNGS) -> list[Rung]:
        """Return the rungs with these settings."""
        settings = asdict(self)
        return [replace(rung, **settings) if rung.trains_network else rung for rung in rungs]


@dataclass(frozen=True, eq=False)
class Ladder:
    """All trainings of a ladder.

    Parameters
    ----------
    about
        Name, unit and task of the job.
    measure
        The metric.
    rungs
        The rungs that were trained.
    seeds
        Predictions of the test records, by split and then by seed.
    lines
        The stored results of every rung's key and split.
    """

    about: Mapping[str, Any]
    measure: Measure
    rungs: Sequence[Rung]
    seeds: Mapping[str, Sequence[SeedPredictions]]
    lines: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]

    def contribution(self, split: str) -> Interval:
        """Return what the partner adds to the best that the primary can do alone."""
        scores = self._bootstrap(split, [ALONE, TOGETHER])
        return scores.gain(ALONE, TOGETHER, lower_is_better=self.measure.lower_is_better)

    def to_dict(self) -> dict[str, Any]:
        """Return the ladder as JSON values, the content of ``ladder.json``."""
        names = sorted({ALONE, TOGETHER, *(name for step in STEPS.values() for name in step)})
        scores = {split: self._bootstrap(split, names) for split in self.seeds}
        split, lower = list(self.seeds)[-1], self.measure.lower_is_better
        unit = GainUnit(self.measure.name, self.about["unit"], self.about.get("label", ""))
        ends = scores[split].scores[ALONE], scores[split].scores[TOGETHER]
        gain = scores[split].gain(ALONE, TOGETHER, lower_is_better=lower)
        gains = [(key, each, scores[each].gain(*STEPS[key], lower_is_better=lower)) for each in scores for key in STEPS]
        first = next(iter(self.seeds.values()))
        return {
            "format": LADDER_FORMAT,
            "job": self.about["name"],
            **{key: self.about[key] for key in ("hash", "truth") if key in self.about},
            "unit": self.about["unit"],
            "metric": self.measure.name,
            "task": self.about["task"],
            "lower_is_better": lower,
            "seeds": len(first),
            "records": len(first[0].labels),
            "worth": contribution_sentence(gain, ends, unit, split),
            "chosen": {side: self._chosen(side, split) for side in (ALONE, TOGETHER)},
            "rungs": [self._rung(rung, each) for each in self.seeds for rung in self.rungs],
            "gains": [
                {"key": key, "split": each, **asdict(gain), "says": gain_sentence(key, gain, unit)}
                for key, each, gain in gains
            ],
        }

    def _chosen(self, side: str, split: str) -> list[str]:
        """Return the rung whose predictions stand for a side, for every seed."""
        return [
            next(rung.key for rung in self.rungs if seed.predictions[rung.key] is seed.predictions[side])
            for seed in self.seeds[split]
        ]

    def _bootstrap(self, split: str, names: Sequence[str]) -> BootstrapScores:
        seeds = [
            replace(seed, predictions={name: seed.predictions[name] for name in names}) for seed in self.seeds[split]
        ]
        return bootstrap_scores(seeds, self.measure, np.random.default_rng(BOOTSTRAP_SEED))

    def _rung(self, rung: Rung, split: str) -> dict[str, Any]:
        values = []
        for seed in self.seeds[split]:
            n = len(seed.labels)
            score = self.measure.scorer(seed.predictions[rung.key], seed.labels, np.arange(n))
            values.append(score(np.ones(n)))
        return {
            "key": rung.key,
            "name": rung.name,
            "split": split,
            "values": values,
            "mean": float(np.mean(values)),
            "deviation": float(np.std(values, ddof=min(1, len(values) - 1))),
            "seconds": float(np.mean([line["seconds"] for line in self.lines[rung.key, split]])),
        }


def best_by_measure(measure: Measure, validation: Mapping[str, Metrics]) -> str:
    """Return the training that is best by the ladder's measure, and where equal by what training itself selects by.

    The latter alone counts if a stored training of an earlier release lacks the measure.
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
    report: Callable[[str], None],
    train_rung: RungTrainer = run_training,
) -> Ladder:
    """Train the missing rungs of a ladder and return all of them.

    Parameters
    ----------
    cases
        One case per split and seed; at least one.
    rungs
        What to train on every case.
    results
        Stored trainings, which are not repeated, and new ones.
    report
        Called with a line after every training.
    train_rung
        How to train a rung.
    """
    seeds: dict[str, list[SeedPredictions]] = {}
    lines: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    about: dict[str, Any] = {}
    measure: Measure | None = None
    for arrays in cases:
        train_missing([arrays], rungs, results, report, train_rung)
        about, test, split = arrays.about, arrays.split.test, arrays.about["split"]
        measure = measure or measure_for_task(about["task"], arrays.labels)
        keys = {rung.key: rung.result_key(arrays) for rung in rungs}
        predictions: dict[str, AnyArray] = {name: results.predictions(key) for name, key in keys.items()}
        stored = {name: results.line(key) for name, key in keys.items()}
        for side, names in ((ALONE, WITHOUT_PARTNER), (TOGETHER, WITH_PARTNER)):
            validation = {name: stored[name]["validation"] for name in names if name in stored}
            predictions[side] = predictions[best_by_measure(measure, validation)]
        seeds.setdefault(split, []).append(SeedPredictions(arrays.labels[test], arrays.groups[test], predictions))
        for name, line in stored.items():
            lines.setdefault((name, split), []).append(line)
    if measure is None:
        raise ValueError("no cases")  # pragma: no cover - callers give one seed at least
    return Ladder(about, measure, rungs, seeds, lines)
