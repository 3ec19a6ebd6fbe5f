"""The comparison ladder: the primary alone, with the partner and with placebo partners, and what the partner adds.

Four sides are compared, in this order: the primary's columns alone; these and its own identifiers, which it can use
alone; the links of a placebo partner, whose feature rows are shuffled; and the partner itself. The gain from
one side to the next is a part of the whole, so the parts add up: the partner's contribution is that of the links and
that of its features. For every seed the validation records choose the training that stands for a side. Alone these are
a perceptron, boosted trees, FedSim's own network with random links, and these two combined: without the network, one
that happens to suit the primary's own columns would be credited to the partner. With the partner they are all methods,
and the placebo is the same method with a placebo partner.

A network that may stand for a side, and was still improving when its epochs were over, is trained longer until it
stops improving, before the best is chosen. Otherwise the number of epochs would determine the contribution.
Secondaries at their own sites train for as many epochs as the job says and no more; where that, or the most that a
ladder trains, was too short, the headline says so.

Letters: n test records, G groups of records that are drawn together, S seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np

from fedsim.contribution.rungs import (
    BOOSTED_TREES,
    STACKED,
    ResultStore,
    Rung,
    RungTrainer,
    SplitArrays,
    run_training,
    train_missing,
)
from fedsim.hyperparameters import TrainingSettings, hyperparameters
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
        return _interval(sign * (self.scores[before] - self.scores[after]), gains)

    def score(self, name: str) -> Interval:
        """Return the score of a training."""
        return _interval(self.scores[name], self.resamples[name])


def _interval(estimate: float, resamples: Floats) -> Interval:
    low, high = np.percentile(resamples, [(100 - CONFIDENCE_PERCENT) / 2, (100 + CONFIDENCE_PERCENT) / 2])
    return Interval(float(estimate), float(low), float(high))


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


LADDER_FORMAT = 2
SOLO, SOLO_WITH_IDENTIFIERS, SOLO_BINNED = "solo", "solo-identifiers", "solo-identifiers-binned"
FEDSIM_WITH_IDENTIFIERS, FEDSIM_PLACEBO = "fedsim-identifiers", "fedsim-identifiers-placebo"
TREES_WITH_IDENTIFIERS, FEDSIM_SHUFFLED = "trees-identifiers", "fedsim-identifiers-shuffled"
CENTRAL, STACKED_SHUFFLED = "trees-linked", "stacked-shuffled"
RUNGS = (
    Rung(SOLO, "Solo", "solo"),
    Rung(SOLO_WITH_IDENTIFIERS, "Solo + own identifiers", "solo", inputs="identifiers"),
    Rung(SOLO_BINNED, "Solo + own identifiers, places in bins", "solo", inputs="binned"),
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
    Rung(STACKED, "FedSim and boosted trees", STACKED, inputs="identifiers"),
    Rung(
        STACKED_SHUFFLED, "FedSim, shuffled links, and boosted trees", STACKED, partner="shuffled", inputs="identifiers"
    ),
    Rung(CENTRAL, "Boosted trees on both tables, joined", "trees", inputs="linked"),
)


def with_embedding(rungs: Sequence[Rung]) -> list[Rung]:
    """Return the rungs of a job that sends an embedding: trees beside a network may see the partners by it."""
    return [replace(rung, inputs="embedded") if rung.method == STACKED else rung for rung in rungs]


# What no party can train without the other's table: left out where the secondaries are at their own sites.
NEEDS_BOTH_TABLES = ("exact", CENTRAL)
WITHOUT_IDENTIFIERS = (SOLO, "trees", "fedsim-shuffled")
WITHOUT_PARTNER = (
    *WITHOUT_IDENTIFIERS,
    SOLO_WITH_IDENTIFIERS,
    SOLO_BINNED,
    TREES_WITH_IDENTIFIERS,
    FEDSIM_SHUFFLED,
    STACKED_SHUFFLED,
)
WITH_PARTNER = ("exact", "top1sim", "avgsim", "featuresim", "fedsim", FEDSIM_WITH_IDENTIFIERS, STACKED)
# The sides of the comparison: what the validation records chose, and the placebo of the last.
PLAIN, ALONE, PLACEBO, TOGETHER = "plain", "alone", "placebo", "together"
STEPS = {
    "identifiers": (PLAIN, ALONE),
    "links": (ALONE, PLACEBO),
    "features": (PLACEBO, TOGETHER),
    "contribution": (ALONE, TOGETHER),
    "total": (PLAIN, TOGETHER),
}
STEP_NAMES = {
    "identifiers": "own identifiers",
    "links": "links",
    "features": "partner's features",
    "contribution": "partner: links, features",
    "total": "all together",
}
BOOTSTRAP_SEED = 2022

# Sentences


MIN_TEST_RECORDS = 100
METRIC_NAMES = {"rmse": "error", "auc": "area under the curve", "accuracy": "accuracy"}


@dataclass(frozen=True)
class GainUnit:
    """The metric and unit of a gain; if the user named no unit, ``unit`` is the name of the label."""

    metric: str
    unit: str
    label: str = ""


def contribution_sentence(
    gain: Interval, ends: tuple[float, float], unit: GainUnit, split: str, *, partners: int = 1
) -> str:
    """Say what the partners add, the headline of a comparison; ``ends`` are the scores without and with them.

    >>> contribution_sentence(Interval(3.1, 2.2, 4.0), (15.6, 12.5), GainUnit("rmse", "S$"), "random")[:76]
    "The partner's data reduces the error by 3.1 S$ (95 % interval 2.2 to 4), fro"
    >>> contribution_sentence(Interval(0.1, -0.2, 0.4), (1.5, 1.4), GainUnit("rmse", "S$"), "random")[:91]
    'No contribution of the partner was found. With its data the error is 0.1 S$ lower (1.4 inst'
    """
    who, whose, their = ("partner", "partner's", "its") if partners == 1 else ("partners", "partners'", "their")
    before, after = (format_number(score, 4) for score in ends)
    if gain.covers_zero:
        direction = "lower" if (gain.estimate >= 0) == (unit.metric == "rmse") else "higher"
        size = f"{_with_unit(abs(gain.estimate), unit)} {direction}"
        scores = f"{after} instead of {before} for the best model of the primary alone, {split} split"
        interval = f"the 95 % interval of the gain, {_format_interval(gain.low, gain.high)}, includes zero"
        missed = f"a contribution of up to {_with_unit(gain.high, unit)} may have been missed"
        found = f"With {their} data the {_metric_name(unit)} is {size} ({scores})"
        joined = f"{found}, {'but' if gain.estimate > 0 else 'and'} {interval}: {missed}."
        return f"No contribution of the {who} was found. {joined}"
    verb, change = _describe_change(gain, unit)
    scores = f"from {before} to {after} ({split} split)"
    baseline = "compared with the best model of the primary alone, own identifiers included"
    hint = " It does not help." if gain.high < 0 else ""
    return f"The {whose} data {verb}s {change}, {scores}, {baseline}.{hint}"


def limit_sentence(improving: int, deciding: int) -> str:
    """Say that more epochs may change a contribution.

    >>> limit_sentence(2, 11)[:81]
    'The number of epochs (--epochs, --minutes or training.epochs) limits this result:'
    """
    share = f"{improving} of {deciding} trainings that decide it were still improving when they ended"
    return f"The number of epochs (--epochs, --minutes or training.epochs) limits this result: {share}."


def few_records_sentence(records: int) -> str:
    """Say that a comparison has too few test records for intervals to be relied on.

    >>> few_records_sentence(3)
    'With only 3 test records the interval is rough; at least 100 are advisable.'
    """
    return f"With only {records} test records the interval is rough; at least {MIN_TEST_RECORDS} are advisable."


def describe_rung(rung: Rung) -> str:
    """Return the name of a rung, which says that a partner that cannot help is a fake one.

    >>> describe_rung(Rung("x", "FedSim, shuffled links", "fedsim", partner="shuffled"))
    'FedSim, shuffled links (a fake partner)'
    """
    return rung.name if rung.partner == "real" else f"{rung.name} (a fake partner)"


def models_sentence(alone: Sequence[str], together: Sequence[str]) -> str:
    """Say which models are compared: the names of those that the validation records chose, one per seed.

    >>> models_sentence(["Solo", "Solo"], ["FedSim", "Top1Sim"])
    "Compared, as the validation records chose: 'FedSim' or 'Top1Sim' with partner, 'Solo' without."
    """
    best, base = (" or ".join(f"'{name}'" for name in dict.fromkeys(names)) for names in (together, alone))
    return f"Compared, as the validation records chose: {best} with partner, {base} without."


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
    size = _with_unit(abs(gain.estimate), unit)
    return verb, f"the {_metric_name(unit)} by {size} (95 % interval {_format_interval(low, high)})"


def _metric_name(unit: GainUnit) -> str:
    name = METRIC_NAMES[unit.metric]
    return f"{name} in {unit.label}" if unit.metric == "rmse" and unit.unit in ("", unit.label) and unit.label else name


def _format_interval(low: float, high: float) -> str:
    return f"{format_number(low + 0.0)} to {format_number(high + 0.0)}"  # zero has no sign


def _with_unit(size: float, unit: GainUnit) -> str:
    text = format_number(size)
    if unit.metric == "rmse" and unit.unit not in ("", unit.label):
        text += f" x {unit.unit}" if unit.unit[0].isdigit() else f" {unit.unit}"  # of a unit such as 1000 S$
    return text


# Several secondaries: the contribution is shared out by Shapley values, the mean of what a secondary adds over all
# orders in which they can join. Up to four secondaries all orders count, above that a sample in which every order comes
# with its reverse.


MAX_ALL_ORDERS = 4
SAMPLED_ORDERS = 8


def partner_orders(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the orders in which secondaries join.

    >>> partner_orders(["a", "b"]), len(partner_orders("abcdef"))
    ([('a', 'b'), ('b', 'a')], 8)
    """
    names = tuple(names)
    if len(names) <= MAX_ALL_ORDERS:
        return list(permutations(names))
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    drawn = [tuple(names[place] for place in rng.permutation(len(names))) for _ in range(SAMPLED_ORDERS // 2)]
    return [order for one in drawn for order in (one, one[::-1])]


def coalitions(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the sets of secondaries, neither empty nor complete, that some order passes through.

    >>> coalitions(["a", "b", "c"])
    [('a',), ('a', 'b'), ('a', 'c'), ('b',), ('b', 'c'), ('c',)]
    """
    orders = partner_orders(several(names))
    return list(dict.fromkeys(tuple(sorted(order[:size])) for order in orders for size in range(1, len(order))))


def several(names: Iterable[str]) -> tuple[str, ...]:
    """Return the secondaries whose contributions are separated: all if there are several."""
    names = tuple(names)
    return names if len(names) > 1 else ()


def coalition_key(members: Sequence[str]) -> str:
    """Return the name of a training with these secondaries only."""
    return f"only {' and '.join(sorted(members))}"


def placebo_key(name: str) -> str:
    """Return the name of a training in which a placebo replaces one of several secondaries."""
    return f"placebo of {name}"


def shapley_shares(
    scores: BootstrapScores, orders: Sequence[Sequence[str]], *, lower_is_better: bool
) -> dict[str, Interval]:
    """Return how much each secondary adds, with intervals; the estimates add up to the whole contribution.

    Sampled orders are resampled too, so that the intervals know of the sampling.
    """
    names, sign = sorted(orders[0]) if orders else [], 1.0 if lower_is_better else -1.0
    rng, found = np.random.default_rng(BOOTSTRAP_SEED), {}

    def key(members: Sequence[str]) -> str:
        ends = {0: ALONE, len(names): TOGETHER}
        return ends.get(len(members)) or coalition_key(members)

    draws = len(next(iter(scores.resamples.values())))
    every = np.tile(np.arange(len(orders)), (draws, 1))  # (draws, orders)
    taken = every if len(names) <= MAX_ALL_ORDERS else rng.integers(len(orders), size=every.shape)
    for name in names:
        steps = [(key(order[:place]), key(order[: place + 1])) for order in orders for place in [order.index(name)]]
        estimate = float(np.mean([sign * (scores.scores[before] - scores.scores[after]) for before, after in steps]))
        gains = np.array([sign * (scores.resamples[before] - scores.resamples[after]) for before, after in steps])
        shares = gains.T[np.arange(draws)[:, None], taken].mean(axis=1)  # (draws,)
        found[name] = _interval(estimate, shares)
    return found


# The ladder


def with_settings(settings: TrainingSettings, rungs: Sequence[Rung] = RUNGS) -> list[Rung]:
    """Return the rungs with these settings of all their networks; trees have their own."""
    common = {"preset": settings.preset} | {name: getattr(settings, name) for name in hyperparameters()}
    return [rung if rung.method == BOOSTED_TREES else replace(rung, **common) for rung in rungs]


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
        Predictions of the test records, by split and then by seed; the headline speaks of the last split.
    lines
        The stored results of every rung's key and split.
    chosen
        The rungs that stand for each side, by split and then by seed.
    deciding
        Whether each training that decides the contribution was still improving at the end, by split.
    secondaries
        Names of the secondaries with a contribution of their own; empty if there is only one.
    """

    about: Mapping[str, Any]
    measure: Measure
    rungs: Sequence[Rung]
    seeds: Mapping[str, Sequence[SeedPredictions]]
    lines: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
    chosen: Mapping[str, Sequence[Mapping[str, Rung]]]
    deciding: Mapping[str, Sequence[bool]]
    secondaries: tuple[str, ...] = ()

    @property
    def headline_split(self) -> str:
        """The split that the headline speaks of."""
        return list(self.seeds)[-1]

    def contribution(self, split: str) -> Interval:
        """Return what the partner adds to the best that the primary can do alone."""
        scores = self._bootstrap(split, STEPS["contribution"])
        return scores.gain(*STEPS["contribution"], lower_is_better=self.measure.lower_is_better)

    def to_dict(self) -> dict[str, Any]:
        """Return the ladder as JSON values, the content of ``ladder.json``."""
        names = sorted({name for step in STEPS.values() for name in step})
        scores = {split: self._bootstrap(split, names) for split in self.seeds}
        split, lower = self.headline_split, self.measure.lower_is_better
        unit = GainUnit(self.measure.name, self.about["unit"], self.about.get("label", ""))
        ends = scores[split].scores[ALONE], scores[split].scores[TOGETHER]
        gains = {(key, each): scores[each].gain(*STEPS[key], lower_is_better=lower) for each in scores for key in STEPS}
        gain = gains["contribution", split]
        shares = {each: self._shares(each) for each in self.seeds}
        partners, deciding = max(1, len(self.secondaries)), self.deciding[split]
        records, chosen = len(self.seeds[split][0].labels), self.chosen[split]
        headline = contribution_sentence(gain, ends, unit, split, partners=partners)
        caveats = [few_records_sentence(records)] if records < MIN_TEST_RECORDS else []
        caveats += [limit_sentence(sum(deciding), len(deciding))] if any(deciding) else []
        return {
            "format": LADDER_FORMAT,
            "job": self.about["name"],
            **{key: self.about[key] for key in ("hash", "truth") if key in self.about},
            "unit": self.about["unit"],
            "metric": self.measure.name,
            "task": self.about["task"],
            "lower_is_better": lower,
            "seeds": len(self.seeds[split]),
            "records": records,
            "split": split,
            "worth": " ".join([headline, *caveats]),
            "headline": headline,
            "caveats": caveats,
            "limited": any(deciding),
            "models": models_sentence(*([describe_rung(each[side]) for each in chosen] for side in (ALONE, TOGETHER))),
            "chosen": {side: [each[side].key for each in chosen] for side in (ALONE, TOGETHER)},
            "sides": [
                {"key": side, "split": each, **asdict(scores[each].score(side)), "models": self._models(each, side)}
                for each in self.seeds
                for side in (ALONE, PLACEBO, TOGETHER)
            ],
            "rungs": [self._rung(rung, each) for each in self.seeds for rung in self._distinct_rungs()],
            "gains": [{"key": key, "split": each, **asdict(gain)} for (key, each), gain in gains.items()],
            "partners": [
                {"secondary": name, "split": each, **asdict(share), "features": asdict(features)}
                for each, found in shares.items()
                for name, (share, features) in found.items()
            ],
        }

    def _models(self, split: str, side: str) -> list[str]:
        """Return the names of the rungs that stand for a side, each once."""
        return list(dict.fromkeys(describe_rung(each[side]) for each in self.chosen[split]))

    def _distinct_rungs(self) -> list[Rung]:
        """Return the rungs, except the one that bins places if there are none, because it repeats another."""
        split = self.headline_split
        trained = {rung.key: self.lines[rung.key, split][0]["settings"]["inputs"] for rung in self.rungs}
        return [rung for rung in self.rungs if rung.inputs != "binned" or trained[rung.key] == "binned"]

    def _shares(self, split: str) -> dict[str, tuple[Interval, Interval]]:
        """Return what each secondary adds, and what its features add to its links while all others take part."""
        if not self.secondaries:
            return {}
        orders = partner_orders(self.secondaries)
        singles = [placebo_key(name) for name in self.secondaries]
        scores = self._bootstrap(split, [ALONE, TOGETHER, *map(coalition_key, coalitions(self.secondaries)), *singles])
        lower = self.measure.lower_is_better
        shares = shapley_shares(scores, orders, lower_is_better=lower)
        return {
            name: (shares[name], scores.gain(placebo_key(name), TOGETHER, lower_is_better=lower))
            for name in self.secondaries
        }

    def _bootstrap(self, split: str, names: Sequence[str]) -> BootstrapScores:
        seeds = [
            replace(seed, predictions={name: seed.predictions[name] for name in names}) for seed in self.seeds[split]
        ]
        return bootstrap_scores(seeds, self.measure, np.random.default_rng(BOOTSTRAP_SEED))

    def _rung(self, rung: Rung, split: str) -> dict[str, Any]:
        interval, values = self._bootstrap(split, [rung.key]).score(rung.key), []
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
            "deviation": float(np.std(values, ddof=1)) if len(values) > 1 else None,
            "low": interval.low,
            "high": interval.high,
            "seconds": float(np.mean([line["seconds"] for line in self.lines[rung.key, split]])),
            "improving": any(line["improving"] for line in self.lines[rung.key, split]),
        }


def best_by_measure(measure: Measure, validation: Mapping[str, Metrics]) -> str:
    """Return the training that is best by the ladder's measure, and where equal by what training itself selects by."""
    sign = -1.0 if measure.lower_is_better else 1.0
    return max(validation, key=lambda name: (sign * validation[name][measure.name], *selection_key(validation[name])))


def train_ladder(  # noqa: PLR0913 - the last two are options by name
    cases: Iterable[SplitArrays],
    rungs: Sequence[Rung],
    results: ResultStore,
    report: Callable[[str], None],
    train_rung: RungTrainer = run_training,
    *,
    lengthen: bool = True,
    tell_apart: bool = False,
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
    lengthen
        Whether networks that may stand for a side and still improve are trained longer.
    tell_apart
        Whether the contribution is shared out among several secondaries, which takes further trainings.
    """
    seeds: dict[str, list[SeedPredictions]] = {}
    lines: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    chosen: dict[str, list[Mapping[str, Rung]]] = {}
    deciding: dict[str, list[bool]] = {}
    about: dict[str, Any] = {}
    names: tuple[str, ...] = ()
    measure: Measure | None = None
    for arrays in cases:
        about, test, split = arrays.about, arrays.split.test, arrays.about["split"]
        measure = measure or measure_for_task(about["task"], arrays.labels)
        train = partial(_train_here, arrays, results, report, train_rung)
        trained = TrainedCase(arrays, rungs, results, train, measure, doublings=MAX_DOUBLINGS if lengthen else 0)
        sides = trained.choose_sides()
        names = several(linked.name for linked in arrays.secondaries) if tell_apart else ()
        by_name = {**{rung.key: rung for rung in rungs}, **sides, **trained.tell_apart(sides[TOGETHER], names)}
        predictions = {name: results.predictions(trained.key_of(rung)) for name, rung in by_name.items()}
        seeds.setdefault(split, []).append(SeedPredictions(arrays.labels[test], arrays.groups[test], predictions))
        chosen.setdefault(split, []).append(sides)
        deciding.setdefault(split, []).extend(trained.deciding)
        for rung in rungs:
            lines.setdefault((rung.key, split), []).append(trained.line(rung))
    if measure is None:
        raise ValueError("no cases")  # pragma: no cover - callers give one seed at least
    return Ladder(about, measure, rungs, seeds, lines, chosen, deciding, names)


def _train_here(
    arrays: SplitArrays,
    results: ResultStore,
    report: Callable[[str], None],
    train_rung: RungTrainer,
    rungs: Sequence[Rung],
) -> None:
    train_missing([arrays], rungs, results, report, train_rung)


# Which training stands for a side, and for how long it is trained


LATE_SHARE = 0.9  # of the epochs: without patience, a best epoch after them means that more epochs may be better
MAX_DOUBLINGS = 3


def is_improving(line: Mapping[str, Any]) -> bool:
    """Return whether a stored training of a network reached its last epoch before its patience was over.

    >>> is_improving({"best_epoch": 4, "limit": 12, "patience": 8}), is_improving({"best_epoch": 5, "limit": 12})
    (False, False)
    >>> is_improving({"best_epoch": 5, "limit": 12, "patience": 8}), is_improving({"best_epoch": 11, "limit": 12})
    (True, True)
    """
    limit, patience = line.get("limit", np.inf), line.get("patience")
    last = LATE_SHARE * limit if patience is None else limit - patience
    return bool(line["best_epoch"] > last)


def rung_side(key: str) -> str:
    """Return which side a rung may stand for by its key; those with a fake partner are a side of their own.

    >>> [rung_side(key) for key in ("solo", "fedsim-shuffled", "stacked-placebo", "stacked", "trees-linked")]
    ['alone', 'placebo', 'placebo', 'together', 'pooled']
    """
    if key.endswith(("placebo", "shuffled")):
        return PLACEBO
    return ALONE if key in WITHOUT_PARTNER else "pooled" if key == CENTRAL else TOGETHER


def count_trainings(rungs: Sequence[Rung], secondaries: Iterable[str], *, lengthen: bool = True) -> int:
    """Return how many trainings one seed of a split takes at most."""
    networks = len([rung for rung in rungs if rung.trains_network])
    # The placebo of the best, and the subsets that separate the secondaries; a stacked rung has two components.
    names = tuple(secondaries)
    further = 3 * (1 + len(coalitions(names)) + len(several(names)))
    longer = (networks + further) * (1 + MAX_DOUBLINGS) if lengthen else 0
    return len(rungs) + further + longer


class TrainedCase:
    """All rungs of a ladder on one split and seed; those that may stand for a side train until they stop improving.

    ``key_of`` and ``line`` are those of the best training of a rung that is long enough.
    """

    def __init__(
        self,
        arrays: SplitArrays,
        rungs: Sequence[Rung],
        results: ResultStore,
        train: Callable[[Sequence[Rung]], None],
        measure: Measure,
        doublings: int,
    ) -> None:
        self.arrays, self.rungs, self.results, self.train, self.measure = arrays, rungs, results, train, measure
        self.doublings = doublings
        self._used: dict[str, Rung] = {}  # by the key of a rung, the same with other epochs
        self._improving: dict[str, bool] = {}  # by the key of a rung that decides, whether its longest training was
        train(rungs)
        for rung in rungs:
            if rung.key in (*WITHOUT_PARTNER, *WITH_PARTNER):
                self._lengthen(rung)
        for rung in rungs:  # placebo partners train for as long as the partner that they are compared with
            real = self._find_rung(replace(rung, partner="real"))
            if rung.partner == "placebo" and real is not None and real.key in self._used:
                self._used[rung.key] = replace(rung, epochs=self._used[real.key].epochs)
                self.train([self._used[rung.key]])

    def choose_ends(self) -> dict[str, Rung]:
        """Return the rungs that stand for the primary alone and with the partner, which need no further training."""
        return {ALONE: self._choose(WITHOUT_PARTNER), TOGETHER: self._choose(WITH_PARTNER)}

    def choose_sides(self) -> dict[str, Rung]:
        """Return the rungs that stand for the four sides."""
        ends = self.choose_ends()
        has_plain = any(rung.key in WITHOUT_IDENTIFIERS for rung in self.rungs)
        plain = self._choose(WITHOUT_IDENTIFIERS) if has_plain else ends[ALONE]
        placebo = self._placebo_of(ends[TOGETHER])
        return {PLAIN: plain, ALONE: ends[ALONE], PLACEBO: placebo, TOGETHER: ends[TOGETHER]}

    def key_of(self, rung: Rung) -> dict[str, Any]:
        """Return what identifies the result of a rung."""
        return self._used.get(rung.key, rung).result_key(self.arrays)

    def line(self, rung: Rung) -> dict[str, Any]:
        """Return the stored result of a rung, and whether it was still improving at the end."""
        line = self.results.line(self.key_of(rung))
        return {**line, "improving": self._improving.get(rung.key, is_improving(line))}

    @property
    def deciding(self) -> list[bool]:
        """Whether each training that decides the contribution was still improving at the end."""
        return list(self._improving.values())

    def _choose(self, names: Sequence[str]) -> Rung:
        """Return the best rung by the validation records."""
        possible = {rung.key: rung for rung in self.rungs if rung.key in names}
        validation = {name: self.line(rung)["validation"] for name, rung in possible.items()}
        return possible[best_by_measure(self.measure, validation)]

    def _placebo_of(self, rung: Rung) -> Rung:
        """Return the same training with a placebo partner: a rung of the ladder if it has one, else one more."""
        twin = replace(rung, key=f"{rung.key}-placebo", name=f"{rung.name}, placebo partner", partner="placebo")
        twin = self._find_rung(twin) or twin
        self._used[twin.key] = replace(twin, epochs=self._used.get(rung.key, rung).epochs)
        self.train([self._used[twin.key]])
        self._lengthen(twin)
        return twin

    def _find_rung(self, wanted: Rung) -> Rung | None:
        """Return the rung of the ladder with the same settings, whatever its name and key."""
        unnamed = replace(wanted, key="", name="")
        return next((one for one in self.rungs if replace(one, key="", name="") == unnamed), None)

    def tell_apart(self, together: Rung, names: Sequence[str]) -> dict[str, Rung]:
        """Train the best rung with some of the secondaries only, and with a placebo in place of each, by name."""
        used = self._used.get(together.key, together)
        found = {}
        for members in coalitions(names):
            key = coalition_key(members)
            found[key] = replace(used, key=key, name=f"{together.name}, {key}", taking_part=members)
        for name in names:
            key = placebo_key(name)
            found[key] = replace(used, key=key, name=f"{together.name}, {key}", partner="placebo", placebos=(name,))
        self.train(list(found.values()))
        for rung in found.values():
            self._lengthen(rung)
        return found

    def _lengthen(self, rung: Rung) -> None:
        """Train the network of a rung, which may be all of it or a component, until it stops improving."""
        used = self._used.get(rung.key, rung)
        network = used.components[0] if used.components else used
        if not network.trains_network:
            return
        if not self.doublings:
            self._improving[rung.key] = is_improving(self.line(rung))
            return
        best, self._improving[rung.key] = self._train_until_it_stops(network)
        if best.epochs != used.epochs:
            self._used[rung.key] = replace(used, epochs=best.epochs)
            self.train([self._used[rung.key]])

    def _train_until_it_stops(self, network: Rung) -> tuple[Rung, bool]:
        """Return a network with the best number of epochs, and whether the longest training was still improving.

        The first step leads to the default length of a job at least, so that a few epochs more or less at the start,
        each with its own schedule of the learning rate, do not decide. Every further step doubles the epochs.
        """
        self.train([network])
        line = self.results.line(network.result_key(self.arrays))
        seed, n_train = self.arrays.about["seed"], len(self.arrays.split.train)
        usual = replace(network, epochs=None).config(seed, n_train=n_train).epochs
        most, best, best_line = max(usual, line["limit"]) << self.doublings, network, line
        while is_improving(line) and line["limit"] < most:
            epochs = 2 * line["limit"] if line["limit"] >= usual else None  # None: the default, stored as such
            longer = replace(network, epochs=epochs, name=f"{network.name}, {epochs or usual} epochs")
            self.train([longer])
            is_short, line = line["limit"] < usual, self.results.line(longer.result_key(self.arrays))
            lines = {"before": best_line["validation"], "after": line["validation"]}
            # A longer schedule may be worse; but what is shorter than the default does not count.
            if is_short or best_by_measure(self.measure, lines) == "after":
                best, best_line = longer, line
        return best, is_improving(line)
