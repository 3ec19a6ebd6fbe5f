"""The honest ladder: what the primary can do alone, with the partner, and with partners that cannot help.

The gain is split in three: what the primary's own identifiers would have told it without anybody, what the links say
beyond that (a partner with shuffled features keeps them), and what the partner's features say. The partner's worth is
counted from the best that the primary can do alone: for every seed the validation records choose between a perceptron,
boosted trees and FedSim's own network with links that lead nowhere, with and without the primary's own identifiers.
Without the last, a network that happens to suit the primary's own columns would be booked as the partner's merit. With
the partner they choose between all methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedsim.experiment.arrays import Array, Arrays
from fedsim.experiment.bootstrap import Drawn, Interval, Judged, drawn
from fedsim.experiment.measures import Measure, measure_for
from fedsim.experiment.results import Results
from fedsim.experiment.run import Tell, TrainRung, climb, key_of, trained
from fedsim.experiment.rung import Rung
from fedsim.experiment.worth import Scale, gain_words, worth_words
from fedsim.training.metrics import Metrics, goodness

FORMAT = 1
SOLO, OWN, PLACEBO, LINKED = "solo", "solo-identifiers", "fedsim-identifiers-placebo", "fedsim-identifiers"
TREES, NOBODY = "trees-identifiers", "fedsim-identifiers-shuffled"
RUNGS = (
    Rung(SOLO, "Solo", "solo"),
    Rung(OWN, "Solo + own identifiers", "solo", inputs="identifiers"),
    Rung("trees", "Boosted trees", "trees"),
    Rung(TREES, "Boosted trees + own identifiers", "trees", inputs="identifiers"),
    Rung("exact", "Exact", "exact"),
    Rung("top1sim", "Top1Sim", "top1sim"),
    Rung("avgsim", "AvgSim", "avgsim"),
    Rung("featuresim", "FeatureSim", "featuresim"),
    Rung("fedsim", "FedSim", "fedsim"),
    Rung(LINKED, "FedSim + own identifiers", "fedsim", inputs="identifiers"),
    Rung("fedsim-placebo", "FedSim, placebo partner", "fedsim", partner="placebo"),
    Rung(PLACEBO, "FedSim + own identifiers, placebo partner", "fedsim", partner="placebo", inputs="identifiers"),
    Rung("fedsim-shuffled", "FedSim, shuffled links", "fedsim", partner="shuffled"),
    Rung(NOBODY, "FedSim + own identifiers, shuffled links", "fedsim", partner="shuffled", inputs="identifiers"),
)
STEPS = {"identifiers": (SOLO, OWN), "links": (OWN, PLACEBO), "features": (PLACEBO, LINKED), "total": (SOLO, LINKED)}
WITHOUT_PARTNER = (SOLO, OWN, "trees", TREES, "fedsim-shuffled", NOBODY)
WITH_PARTNER = ("exact", "top1sim", "avgsim", "featuresim", "fedsim", LINKED)
ALONE, TOGETHER = "alone", "together"  # what the validation records chose of them
BOOTSTRAP_SEED = 2022


@dataclass(frozen=True)
class Learning:
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
    judged: Mapping[str, Sequence[Judged]]
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
            "format": FORMAT,
            "job": self.about["name"],
            **{key: self.about[key] for key in ("hash", "truth") if key in self.about},
            "unit": self.about["unit"],
            "metric": self.measure.name,
            "task": self.about["task"],
            "lower_is_better": self.measure.lower_is_better,
            "seeds": len(seeds),
            "records": len(seeds[0].labels),
            "worth": worth_words(worth, ends, self._scale, last),
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

    def _drawn(self, split: str, names: Sequence[str]) -> Drawn:
        seeds = [
            replace(judged, predictions={name: judged.predictions[name] for name in names})
            for judged in self.judged[split]
        ]
        return drawn(seeds, self.measure, np.random.default_rng(BOOTSTRAP_SEED))

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

    def _gain(self, key: str, split: str, band: Drawn) -> dict[str, Any]:
        gain = band.gain(*STEPS[key], lower_is_better=self.measure.lower_is_better)
        return {"key": key, "split": split, **asdict(gain), "says": gain_words(key, gain, self._scale)}

    @property
    def _scale(self) -> Scale:
        return Scale(self.measure.name, self.about["unit"], self.about.get("label", ""))


def best_of_both(found: Mapping[str, Array], validation: Mapping[str, Metrics], measure: Measure) -> dict[str, Array]:
    """The predictions that the validation records choose, without the partner and with it."""

    def best(names: Sequence[str]) -> Array:
        known = {name: validation[name] for name in names if name in found}
        return found[best_by(measure, known)]

    return {ALONE: best(WITHOUT_PARTNER), TOGETHER: best(WITH_PARTNER)}


def best_by(measure: Measure, validation: Mapping[str, Metrics]) -> str:
    """The training that is best by the ladder's own measure, where equal by what training itself goes by.

    That alone counts where a training of an earlier release was not measured so.
    """
    measured = all(measure.name in metrics for metrics in validation.values())
    sign = -1.0 if measure.lower_is_better else 1.0

    def rank(name: str) -> tuple[float, ...]:
        metrics = validation[name]
        return (sign * metrics[measure.name], *goodness(metrics)) if measured else goodness(metrics)

    return max(validation, key=rank)


def climbed(
    cases: Iterable[Arrays], rungs: Sequence[Rung], results: Results, tell: Tell, train_rung: TrainRung = trained
) -> Ladder:
    """Train what is missing of a ladder, and gather all of it."""
    judged: dict[str, list[Judged]] = {}
    lines: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    about: dict[str, Any] = {}
    measure: Measure | None = None
    for arrays in cases:
        climb([arrays], rungs, results, tell, train_rung)
        about, test, split = arrays.about, arrays.split.test, arrays.about["split"]
        measure = measure or measure_for(about["task"], arrays.labels)
        keys = {rung.key: key_of(rung, arrays) for rung in rungs}
        found = {name: results.predictions(key) for name, key in keys.items()}
        known = {name: results.line(key) for name, key in keys.items()}
        validation = {name: line["validation"] for name, line in known.items()}
        chosen = {**found, **best_of_both(found, validation, measure)}
        judged.setdefault(split, []).append(Judged(arrays.labels[test], arrays.groups[test], chosen))
        for name, line in known.items():
            lines.setdefault((name, split), []).append(line)
    if measure is None:
        raise ValueError("no cases")  # pragma: no cover - callers ask for one seed at least
    return Ladder(about, measure, rungs, judged, lines)
