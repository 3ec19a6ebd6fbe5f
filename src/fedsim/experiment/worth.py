"""What a gain means, in one sentence and in the user's unit."""

from __future__ import annotations

from dataclasses import dataclass

from fedsim.experiment.bootstrap import Interval

MEANINGS = {
    "identifiers": "the primary's own identifiers, used as features without any partner",
    "links": "the links, beyond the primary's own identifiers and whatever the partner's features say",
    "features": "what the partner's features say, beyond the links",
    "total": "everything together, over the primary's own features alone",
}
METRICS = {"rmse": "error", "auc": "area under the curve", "accuracy": "share of correct answers"}


@dataclass(frozen=True)
class Scale:
    """What a gain is counted in: a metric and a unit; where nobody named one, the ``label`` stands in its place."""

    metric: str
    unit: str
    label: str = ""


def gain_words(key: str, gain: Interval, scale: Scale) -> str:
    """What one step of the ladder brings.

    >>> gain_words("features", Interval(1.25, 0.5, 2.0), Scale("rmse", "S$"))
    "What the partner's features say, beyond the links: 1.25 S$ less error (0.5 to 2)."
    """
    meaning = MEANINGS[key]
    if gain.covers_zero:
        range_ = f"{number(gain.low)} to {number(gain.high)}"
        return f"{meaning[0].upper()}{meaning[1:]}: nothing that can be told from chance ({range_})."
    return f"{meaning[0].upper()}{meaning[1:]}: {_change(gain, scale)} ({_range(gain)})."


def worth_words(worth: Interval, ends: tuple[float, float], scale: Scale, split: str) -> str:
    """What the partner is worth: the sentence at the top; ``ends`` are the scores without and with it.

    >>> worth_words(Interval(0.6, 0.5, 0.7), (3.1, 2.5), Scale("rmse", "age", label="age"), "random")[:69]
    'This partner is worth 0.6 less error in age (95 % interval 0.5 to 0.7'
    """
    found = f"{_change(worth, scale)} (95 % interval {_range(worth)})"
    scores = f"{number(ends[0], 4)} against {number(ends[1], 4)} ({split} split)"
    beyond = "the best the primary can do alone (own identifiers included, chosen by the validation records)"
    if worth.covers_zero:
        return f"No worth of this partner can be told from chance: {found} than {beyond}, {scores}."
    if worth.high < 0:
        return f"This partner does harm, or networks trained too short: {found} than {beyond}, {scores}."
    return f"This partner is worth {found} than {beyond}, {scores}."


def number(value: float, digits: int = 3) -> str:
    """Figures that count, all of them before the point, thousands set apart.

    >>> [number(value) for value in (87600.4, -1234.5, 12.345, 0.5, 0.000012)]
    ['87,600', '-1,234', '12.3', '0.5', '1.2e-05']
    """
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def _change(gain: Interval, scale: Scale) -> str:
    better = gain.estimate >= 0
    direction = "less" if better == (scale.metric == "rmse") else "more"
    size = number(abs(gain.estimate))
    if scale.metric != "rmse":
        return f"{size} {direction} {METRICS[scale.metric]}"
    if scale.unit in ("", scale.label):
        return f"{size} {direction} error" + (f" in {scale.label}" if scale.label else "")
    times = "x " if scale.unit[:1].isdigit() else ""  # of a unit such as 1000 S$
    return f"{size} {times}{scale.unit} {direction} error"


def _range(gain: Interval) -> str:
    """The interval in the direction of the change: above zero where it is sure, be it for better or worse."""
    low, high = (gain.low, gain.high) if gain.estimate >= 0 else (-gain.high, -gain.low)
    return f"{number(low + 0.0)} to {number(high + 0.0)}"
