"""What a gain means, in one sentence and in the user's unit."""

from __future__ import annotations

from fedsim.experiment.bootstrap import Interval

MEANINGS = {
    "identifiers": "the primary's own identifiers, used as features without any partner",
    "links": "the links, beyond the primary's own identifiers and whatever the partner's features say",
    "features": "what the partner's features say, beyond the links",
    "total": "everything together, over the primary's own features alone",
}
# Words that are units; any other word is taken for the label's name, which stands there where nobody names a unit.
TIMES = ("seconds", "minutes", "hours", "days", "weeks", "months", "years")
MONEY = ("cents", "dollars", "euro", "euros", "francs", "pounds")
UNITS = (
    *TIMES,
    *MONEY,
    "metres",
    "meters",
    "miles",
    "feet",
    "degrees",
    "points",
    "percent",
    "stars",
    "grams",
    "litres",
)
SHORT = 3  # letters of a unit such as EUR
METRICS = {"rmse": "error", "auc": "area under the curve", "accuracy": "share of correct answers"}


def gain_words(key: str, gain: Interval, metric: str, unit: str) -> str:
    """What one step of the ladder brings.

    >>> gain_words("features", Interval(1.25, 0.5, 2.0), "rmse", "S$")
    "What the partner's features say, beyond the links: 1.25 S$ less error (0.5 to 2)."
    """
    meaning = MEANINGS[key]
    if gain.covers_zero:
        range_ = f"{number(gain.low)} to {number(gain.high)}"
        return f"{meaning[0].upper()}{meaning[1:]}: nothing that can be told from chance ({range_})."
    return f"{meaning[0].upper()}{meaning[1:]}: {_change(gain, metric, unit)} ({_range(gain)})."


def worth_words(worth: Interval, ends: tuple[float, float], metric: str, unit: str, split: str) -> str:
    """What the partner is worth: the sentence at the top; ``ends`` are the scores without and with it.

    >>> worth_words(Interval(-87612.0, -91000.0, -1234.5), (412345.0, 499957.0), "rmse", "price", "random")[:110]
    'This partner does harm, or networks trained too short: 87,612 more error in price (95 % interval 1,234 to 91,0'
    """
    found = f"{_change(worth, metric, unit)} (95 % interval {_range(worth)})"
    scores = f"{number(ends[0], 4)} against {number(ends[1], 4)} ({split} split)"
    beyond = "the best the primary can do alone, its own identifiers included"
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


def _change(gain: Interval, metric: str, unit: str) -> str:
    better = gain.estimate >= 0
    direction = "less" if better == (metric == "rmse") else "more"
    size = number(abs(gain.estimate))
    if metric != "rmse":
        return f"{size} {direction} {METRICS[metric]}"
    if unit.isidentifier() and len(unit) > SHORT and unit.lower() not in UNITS:
        return f"{size} {direction} error in {unit}"
    times = "x " if unit[:1].isdigit() else ""  # of a unit such as 1000 S$
    return f"{size} {times}{unit} {direction} error"


def _range(gain: Interval) -> str:
    """The interval in the direction of the change: above zero where it is sure, be it for better or worse."""
    low, high = (gain.low, gain.high) if gain.estimate >= 0 else (-gain.high, -gain.low)
    return f"{number(low + 0.0)} to {number(high + 0.0)}"
