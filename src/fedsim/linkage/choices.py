"""Words become metrics here and nowhere else."""

from __future__ import annotations

from fedsim.errors import SettingError, nearest_word
from fedsim.linkage.metric import Metric
from fedsim.linkage.metrics.filters import Dice, Hamming, RankHamming
from fedsim.linkage.metrics.places import Days, Euclidean, GreatCircle
from fedsim.linkage.metrics.text import Levenshtein

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Euclidean(),
        GreatCircle(),
        Days(),
        Levenshtein(),
        Levenshtein(normalised=True),
        Hamming(),
        Dice(),
        RankHamming(),
    )
}


def metric_named(word: str | Metric) -> Metric:
    """The metric for a word; a metric is returned as it is.

    >>> metric_named("levenshtein-normalised")
    Levenshtein(normalised=True)
    """
    if isinstance(word, str) and word in METRICS:
        return METRICS[word]
    if not isinstance(word, str) and hasattr(word, "prepare") and not isinstance(word, type):
        return word
    near = nearest_word(word, METRICS)
    hint = f"did you mean '{near}'? " if near else ""
    seen = f"metric '{word}' is unknown" if isinstance(word, str) else f"a {type(word).__name__} is no metric"
    raise SettingError(f"{seen}; {hint}the metrics are {', '.join(METRICS)}")
