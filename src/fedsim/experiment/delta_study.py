"""Does Delta, computed before any training, foretell what FedSim gains over Top1Sim? (paper, figure 5b)"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import pearsonr, spearmanr

from fedsim.experiment.cases import Cases
from fedsim.experiment.sheet import Chart, Series, Sheet, Table, run_facts
from fedsim.experiment.study import Part, Study
from fedsim.experiment.study_run import Bench, Row, cases_of, missing, run_study
from fedsim.linkage import improvement_of

PAPER = {"house": 34.05, "taxi": 14.26, "hdb": 20.69, "game": 4.14, "company": 10.50}
NEEDED = ["top1sim", "fedsim"]


def delta_sheet(study: Study, bench: Bench) -> tuple[Sheet, tuple[Mapping[str, Any], ...]]:
    """Delta beside the gain of every dataset of table 1, and how they go together; with the trainings behind it."""
    began = time.perf_counter()
    only = replace(study, parts=tuple(replace(part, rungs=NEEDED) for part in study.parts))
    found = run_study(only, bench)
    points = {}
    for part in only.parts:
        if not missing(part.dataset, bench.data):
            rows = [row for row in found.rows if row.dataset == part.title]
            points[part.title] = (delta_of(part, bench.data), relative_gain(rows))
    rows_of_table = tuple(
        (name, f"{delta:.2f}", f"{PAPER[name]:.2f}" if name in PAPER else "-", f"{100 * gain:.1f} %")
        for name, (delta, gain) in points.items()
    )
    sheet = Sheet(
        "figure-delta",
        "Delta against the gain over Top1Sim",
        "Figure 5b",
        "the larger Delta, the larger the gain",
        (Table("Delta over Top1Sim", ("dataset", "Delta", "paper's Delta", "relative gain"), rows_of_table),),
        (_chart(points),),
        says=(correlation_words(*_columns(points)),),
        notes=(*found.notes, "Delta counts the K linked partners, as large as K makes it; so does the paper's"),
        facts=run_facts(found.lines, time.perf_counter() - began),
    )
    return sheet, found.lines


def delta_of(part: Part, data: Path) -> float:
    """Delta over Top1Sim, every record counting once."""
    cases: Cases = cases_of(part, data)
    links = cases.links[cases.taking_part[0].name]
    list_of = np.unique(cases.groups, return_inverse=True)[1]
    spread = replace(links, partner=links.partner[list_of], distance=links.distance[list_of])
    return improvement_of(spread).top1sim


def relative_gain(rows: Sequence[Row]) -> float:
    """By which share FedSim is better than Top1Sim."""
    means = {row.method: row.mean for row in rows}
    better = means["Top1Sim"] - means["FedSim"] if rows[0].measure == "rmse" else means["FedSim"] - means["Top1Sim"]
    return better / means["Top1Sim"]


def correlation_words(deltas: Sequence[float], gains: Sequence[float]) -> str:
    """Both correlations in a sentence.

    >>> correlation_words([1.0, 2.0, 4.0], [0.1, 0.2, 0.4])
    'correlation of Delta with the gain over 3 datasets: 1.00 (Pearson), 1.00 (Spearman)'
    """
    if len(deltas) < 3:
        return f"{len(deltas)} datasets are too few for a correlation"
    straight, ranked = float(pearsonr(deltas, gains).statistic), float(spearmanr(deltas, gains).statistic)
    return (
        f"correlation of Delta with the gain over {len(deltas)} datasets: {straight:.2f} (Pearson), "
        f"{ranked:.2f} (Spearman)"
    )


def _columns(points: dict[str, tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [delta for delta, _ in points.values()], [gain for _, gain in points.values()]


def _chart(points: dict[str, tuple[float, float]]) -> Chart:
    ordered = sorted(points, key=lambda name: points[name][0])
    gains = tuple(100 * points[name][1] for name in ordered)
    nothing = tuple(None for _ in ordered)
    places = tuple(f"{name} {points[name][0]:.1f}" for name in ordered)
    return Chart(
        "Gain by Delta",
        "dataset and its Delta, smallest first",
        "gain over Top1Sim, %",
        places,
        (Series("gain", gains, nothing, nothing),),
    )
