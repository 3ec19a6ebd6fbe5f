"""Results of an experiment as a table: mean and deviation over the seeds, one column per split."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from fedsim.errors import SettingError


def table(lines: list[dict[str, Any]], metric: str) -> str:
    """Markdown: rungs down, splits across; the numbers are those of the test records.

    >>> row = {"settings": {"name": "Solo"}, "split": "random", "unit": "S$", "test": {"rmse": 2.0}}
    >>> print(table([row, {**row, "test": {"rmse": 3.0}}], "rmse"))
    | rmse, S$ | random split |
    |---|---|
    | Solo | 2.500 ± 0.707 (2) |
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in lines:
        found[line["settings"]["name"], line["split"]].append(line["test"][metric])
    rungs = list(dict.fromkeys(line["settings"]["name"] for line in lines))
    splits = list(dict.fromkeys(line["split"] for line in lines))
    head = [f"| {metric}, {lines[0]['unit']} | " + " | ".join(f"{split} split" for split in splits) + " |"]
    rule = ["|" + "---|" * (len(splits) + 1)]
    body = [f"| {rung} | " + " | ".join(_cell(found[rung, split]) for split in splits) + " |" for rung in rungs]
    return "\n".join(head + rule + body)


def _cell(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=min(1, len(values) - 1)):.3f} ({len(values)})"


def checked_metric(metric: str, lines: list[dict[str, Any]]) -> str:
    """The metric, if these results have it."""
    known = sorted({name for line in lines for name in line["test"]})
    if metric not in known:
        raise SettingError(f"metric '{metric}' was not measured; choose {', '.join(known)}")
    return metric
