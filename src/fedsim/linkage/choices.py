"""Words become metrics here and nowhere else."""

from __future__ import annotations

from difflib import get_close_matches

from fedsim.errors import SettingError
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
    if not isinstance(word, str):
        return word
    if word in METRICS:
        return METRICS[word]
    near = get_close_matches(word, METRICS, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise SettingError(f"metric '{word}' is unknown; {hint}the metrics are {', '.join(METRICS)}")
