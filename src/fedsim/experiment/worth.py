"""What a gain means, in one sentence and in the user's unit."""

from __future__ import annotations

from fedsim.experiment.bootstrap import Interval

MEANINGS = {
    "identifiers": "the primary's own identifiers, used as features without any partner",
    "links": "the links, beyond the primary's own identifiers and whatever the partner's features say",
    "features": "what the partner's features say, beyond the links",
    "total": "everything together, over the primary's own features alone",
}
METRICS = {"rmse": "error", "auc": "area under the curve", "accuracy": "share of correct answers"}


def gain_words(key: str, gain: Interval, metric: str, unit: str) -> str:
    """What one step of the ladder brings.

    >>> gain_words("features", Interval(1.25, 0.5, 2.0), "rmse", "S$")
    "What the partner's features say, beyond the links: 1.25 S$ less error (0.5 to 2)."
    """
    meaning = MEANINGS[key]
    if gain.covers_zero:
        return f"{meaning[0].upper()}{meaning[1:]}: nothing that can be told from chance ({_range(gain)})."
    return f"{meaning[0].upper()}{meaning[1:]}: {_change(gain, metric, unit)} ({_range(gain)})."


def worth_words(worth: Interval, ends: tuple[float, float], metric: str, unit: str, split: str) -> str:
    """What the partner is worth: the sentence at the top; ``ends`` are the scores without and with it."""
    found = f"{_change(worth, metric, unit)} (95 % interval {_range(worth)})"
    scores = f"{ends[0]:.4g} against {ends[1]:.4g} ({split} split)"
    beyond = "the best the primary can do alone, its own identifiers included"
    if worth.covers_zero:
        return f"No worth of this partner can be told from chance: {found} than {beyond}, {scores}."
    if worth.high < 0:
        return f"This partner does harm, or networks trained too short: {found} than {beyond}, {scores}."
    return f"This partner is worth {found} than {beyond}, {scores}."


def _change(gain: Interval, metric: str, unit: str) -> str:
    better = gain.estimate >= 0
    direction = "less" if better == (metric == "rmse") else "more"
    if metric != "rmse":
        return f"{abs(gain.estimate):.3g} {direction} {METRICS[metric]}"
    times = "x " if unit[:1].isdigit() else ""  # of a unit such as 1000 S$
    return f"{abs(gain.estimate):.3g} {times}{unit} {direction} error"


def _range(gain: Interval) -> str:
    return f"{gain.low:.3g} to {gain.high:.3g}"
