"""What training left, as plain JSON values, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import FileError, SettingError
from fedsim.estimator.linking import LinkRule
from fedsim.estimator.pairs import Pair
from fedsim.linkage import Field, Metric, WeightedSum, metric_named
from fedsim.linkage.choices import METRICS
from fedsim.types import Scale


def rule_state(rule: LinkRule) -> dict[str, Any]:
    """The links to one secondary."""
    return {
        "primary_columns": rule.pair.ours,
        "secondary_columns": rule.pair.theirs,
        "metric": metric_state(rule.pair.metric),
        "k": rule.k,
        "sigma": rule.sigma,
        "scale": [rule.scale.mean, rule.scale.deviation],
    }


def rule_from(party: str, state: Mapping[str, Any]) -> LinkRule:
    """The rule that :func:`rule_state` described."""
    try:
        pair = Pair(
            party,
            tuple(state["primary_columns"]),
            tuple(state["secondary_columns"]),
            metric_from(state["metric"]),
        )
        return LinkRule(pair, state["k"], state["sigma"], Scale(*state["scale"]))
    except (LookupError, TypeError) as error:
        raise FileError(f"the link rule of {party} cannot be read ({type(error).__name__}); save it again") from error


def metric_state(metric: Metric) -> Any:
    """A word, or the fields of a weighted sum.

    >>> metric_state(metric_named("days"))
    'days'
    """
    if isinstance(metric, WeightedSum):
        return [[field.column, metric_state(field.measure), field.weight] for field in metric.fields]
    if METRICS.get(metric.name) == metric:
        return metric.name
    raise SettingError(f"metric '{metric.name}' is not one of FedSim's own; a model with it cannot be saved")


def metric_from(state: Any) -> Metric:
    """The metric that :func:`metric_state` described."""
    if isinstance(state, str):
        return metric_named(state)
    return WeightedSum(tuple(Field(column, metric_named(word), weight) for column, word, weight in state))


def class_state(classes: NDArray[Any]) -> dict[str, Any]:
    """The user's classes: whole numbers, numbers, true/false or text."""
    if not all(isinstance(value, int | float | str | bool) for value in classes.tolist()):
        raise SettingError("the classes are neither numbers nor text; a model with them cannot be saved")
    return {"type": classes.dtype.str, "values": classes.tolist()}


def class_from(state: Mapping[str, Any]) -> NDArray[Any]:
    """The classes that :func:`class_state` described."""
    return np.array(state["values"], dtype=np.dtype(state["type"]))
