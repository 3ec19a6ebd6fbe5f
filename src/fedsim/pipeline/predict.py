"""Predict new records, and explain the predictions, by a network and the boosted trees beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsim.splitnn import Features
from fedsim.training import Model, explain
from fedsim.training.boosted_trees import EmbeddedPartners, StackedTrees, TreeColumns, TreeInputs
from fedsim.training.data import LogTarget, stretch_intervals
from fedsim.training.explain import Combine
from fedsim.types import Explanation, Floats, Floats32, Links


@dataclass(frozen=True, eq=False)
class LinkedInputs:
    """Records as a model takes them: features, partners in every list, and what trees see beside these.

    ``away`` names the secondaries whose lists are missing.
    """

    features: Features
    lists: Sequence[Links]
    names: Floats32 | None = None
    embedded: Sequence[EmbeddedPartners | None] = ()
    away: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class FittedModel:
    """A network and the trees beside it, if there are any.

    Parameters
    ----------
    model, trees
        The network, and the trees.
    typical
        What explanations compare with, see ``TypicalInputs.state``; None in models of earlier releases.
    classes
        The classes, where the label is one.
    absence
        By which factor intervals are wider while the named secondaries are away.
    """

    model: Model
    trees: StackedTrees | None = None
    typical: Mapping[str, Any] | None = None
    classes: Sequence[Any] = ()
    absence: Sequence[tuple[Sequence[str], float]] = ()

    def predict(self, records: LinkedInputs) -> tuple[Floats, Floats | None]:
        """Return numbers in the unit of the labels with intervals, or class probabilities."""
        values, intervals = self.model.predict_with_intervals(records.features, records.lists)
        return self._combine(records.away)(values, intervals, records.features, self._columns(records))

    def explain(self, records: LinkedInputs) -> tuple[Floats, Floats | None, list[Explanation]]:
        """Return the same, and the explanation of every prediction."""
        combine, typical = self._combine(records.away), explain.typical_from_state(self.typical)
        linked = explain.request_records(self.model, records.features, records.lists, self._columns(records))
        values, intervals = combine(*explain.predict_records(self.model, linked), records.features, linked.columns)
        found = explain.explain_records(self.model, linked, typical, combine=combine, classes=self.classes)
        return values, intervals, found

    def _columns(self, records: LinkedInputs) -> TreeColumns:
        if self.trees is None or records.names is None:
            return TreeColumns.none(len(records.features))
        return self.trees.columns(TreeInputs(records.names, records.embedded))

    def _combine(self, away: Sequence[str]) -> Combine:
        """Return what turns predictions of the network into those of the model while some secondaries are away."""
        # While some of several are away, the intervals are those without all of them.
        factors = self.absence or [((), 1.0)]
        stretch = next((factor for names, factor in factors if set(names) == set(away)), factors[-1][1])
        log, trees = isinstance(self.model.target, LogTarget), self.trees

        def combined(
            values: Floats, intervals: Floats | None, features: Features, columns: TreeColumns
        ) -> tuple[Floats, Floats | None]:
            if trees is not None:
                values, intervals = trees.combine(values, intervals, features, columns)
            if away and intervals is not None:
                intervals = stretch_intervals(values, intervals, stretch, log=log)
            return np.asarray(values), intervals

        return combined
