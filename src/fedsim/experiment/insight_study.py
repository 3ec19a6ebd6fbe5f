"""What the gates learnt on one dataset, and the neighbours of one record (appendix, "Visualization").

The paper shows ``company``; firms generated here are linked by name as well, so their names can be shown.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsim.data.datasets import known_firms
from fedsim.experiment.arrays import Arrays, Linked
from fedsim.experiment.cases import Cases
from fedsim.experiment.choices import config_of
from fedsim.experiment.run import machine, metric_words, primary_of, secondaries_of
from fedsim.experiment.rung import Rung
from fedsim.experiment.sheet import Sheet, Table, run_facts
from fedsim.experiment.study_run import Bench
from fedsim.splitnn.gates.order import Neighbours
from fedsim.training import Model, train
from fedsim.training.explain import Importance, WeightCurve, merge_importance, weight_curves
from fedsim.types import Floats, Integers

RECORDS = 200


@dataclass(frozen=True, eq=False)
class Insight:
    """The sheet with the neighbours' table, and what the pictures are drawn from."""

    sheet: Sheet
    curves: Sequence[WeightCurve]
    importances: Sequence[Importance]


def look(epochs: int, bench: Bench) -> Insight:
    """Train FedSim on generated firms and look into its gates."""
    began, firms = time.perf_counter(), known_firms(np.random.default_rng(0))
    arrays = Cases(firms.dataset()).one("random", 0)
    rung = Rung("fedsim", "FedSim", "fedsim", preset="paper", epochs=epochs, rate=3e-3)
    parties, hooks = (primary_of(rung, arrays), secondaries_of(rung, arrays)), bench.watch("[1 of 1] firms, FedSim")
    result = train(*parties, arrays.split, config_of(rung, seed=0), hooks=hooks)
    bench.tell(f"[1 of 1] firms: FedSim: {metric_words(result.metrics['test'])}")
    seconds = time.perf_counter() - began
    line = {**machine(), "seed": 0, "seconds": seconds}
    curve = weight_curves(result.model)[0]
    names = firms.ours["name"].to_list(), firms.theirs["name"].to_list()
    sheet = Sheet(
        "figure-insight",
        "What the gates learnt",
        "Figure 10 (appendix)",
        "the weight rises with the similarity, and the nearest partners count most",
        (_neighbours(arrays, names, curve, firms.match),),
        says=(f"weight from {curve.weight[0]:.2f} at similarity -3 to {curve.weight[-1]:.2f} at 3",),
        notes=("generated firms instead of company, whose data is not public in one place",),
        facts=run_facts([line], seconds),
    )
    return Insight(sheet, [curve], _importance(result.model, arrays))


def _neighbours(arrays: Arrays, names: tuple[list[str], list[str]], curve: WeightCurve, match: Integers) -> Table:
    """The partners of the first test record that is among them under another spelling."""
    linked = arrays.secondaries[0]
    misspelt = (int(row) for row in arrays.split.test if linked.equal[linked.list_of[row]] < 0)
    row = next(row for row in misspelt if match[row] in linked.partner[linked.list_of[row]])
    partner, similarity = linked.partner[linked.list_of[row]], linked.similarity[linked.list_of[row]]
    weight: Floats = np.interp(similarity, curve.similarity, curve.weight)
    rows = tuple(
        (names[1][there], f"{near:.2f}", f"{much:.2f}")
        for there, near, much in zip(partner, similarity, weight, strict=True)
    )
    return Table(f"partners of '{names[0][row]}'", ("name", "similarity, scaled", "weight"), rows)


def _importance(model: Model, arrays: Arrays) -> list[Importance]:
    rows, linked = arrays.split.test[:RECORDS], arrays.secondaries[0]
    return merge_importance(model, arrays.primary.take(rows), [_lists(linked, linked.list_of[rows])])


def _lists(linked: Linked, lists: Floats) -> Neighbours:
    return Neighbours(linked.partner[lists].astype(np.int64), linked.similarity[lists].astype(np.float64))
