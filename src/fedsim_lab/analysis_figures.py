"""Figures that explain results: Delta versus the gain over Top1Sim, attackers under tau, and what the gates learnt."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import pearsonr, spearmanr

from fedsim.contribution.rungs import LinkedSecondary, Rung, SplitArrays, environment_info, format_metrics
from fedsim.linkage.soft_linkage import fit_scale, improvement_from_links
from fedsim.privacy.bounds import bayes_success, sigma_for_bound
from fedsim.training import Model, train
from fedsim.training.explain import MergeImportance, WeightCurve, merge_importance, weight_curves
from fedsim.types import Floats, Integers, LinkageResult, Links
from fedsim_audit.attacks.similarity_attacks import expected_success_rate
from fedsim_lab.dataset_cases import DatasetCases
from fedsim_lab.datasets.generated import generate_firms
from fedsim_lab.result_table import ChartSeries, ResultChart, ResultSheet, ResultTable, run_facts
from fedsim_lab.study_config import PaperStudy, StudyPart
from fedsim_lab.study_runner import PAPER_SPLIT, StudyContext, StudyRow, missing_data_note, part_cases, run_study

# Does Delta, computed before any training, predict what FedSim gains over Top1Sim? (paper, figure 5b)


PAPER_DELTAS = {"house": 34.05, "taxi": 14.26, "hdb": 20.69, "game": 4.14, "company": 10.50}
DELTA_RUNGS = ["top1sim", "fedsim"]


def delta_sheet(study: PaperStudy, bench: StudyContext) -> tuple[ResultSheet, tuple[Mapping[str, Any], ...]]:
    """Return Delta and the gain for every dataset of table 1, their correlation, and the trainings behind them."""
    began = time.perf_counter()
    only = replace(
        study,
        parts=tuple(replace(part, rungs=DELTA_RUNGS, vary="", values=[], split=PAPER_SPLIT) for part in study.parts),
    )
    found = run_study(only, bench)
    points = {}
    for part in only.parts:
        if not missing_data_note(part.dataset, bench.data):
            rows = [row for row in found.rows if row.dataset == part.title]
            points[part.title] = (part_delta(part, bench.data), relative_gain(rows))
    rows_of_table = tuple(
        (name, f"{delta:.2f}", f"{PAPER_DELTAS[name]:.2f}" if name in PAPER_DELTAS else "-", f"{100 * gain:.1f} %")
        for name, (delta, gain) in points.items()
    )
    sheet = ResultSheet(
        "figure-delta",
        "Delta against the gain over Top1Sim",
        "Figure 5b",
        "the larger Delta, the larger the gain",
        (ResultTable("Delta over Top1Sim", ("dataset", "Delta", "paper's Delta", "relative gain"), rows_of_table),),
        (_delta_chart(points),),
        says=(correlation_sentence(*_deltas_and_gains(points)),),
        notes=(*found.notes, "Delta counts the K linked partners, as large as K makes it; so does the paper's"),
        facts=run_facts(found.lines, time.perf_counter() - began),
    )
    return sheet, found.lines


def part_delta(part: StudyPart, data: Path | None) -> float:
    """Return Delta over Top1Sim, counting every record once."""
    return improvement_from_links(_links_of_records(part, data)).top1sim


def _links_of_records(part: StudyPart, data: Path | None) -> LinkageResult:
    cases: DatasetCases = part_cases(part, data)
    links = cases.links[cases.taking_part[0].name]
    list_of = np.unique(cases.groups, return_inverse=True)[1]
    return replace(links, partner=links.partner[list_of], distance=links.distance[list_of])


def relative_gain(rows: Sequence[StudyRow]) -> float:
    """Return by which share FedSim is better than Top1Sim."""
    means = {row.method: row.mean for row in rows}
    better = means["Top1Sim"] - means["FedSim"] if rows[0].measure == "rmse" else means["FedSim"] - means["Top1Sim"]
    return better / means["Top1Sim"]


def correlation_sentence(deltas: Sequence[float], gains: Sequence[float]) -> str:
    """Return both correlations as a sentence.

    >>> correlation_sentence([1.0, 2.0, 4.0], [0.1, 0.2, 0.4])
    'correlation of Delta with the gain over 3 datasets: 1.00 (Pearson), 1.00 (Spearman)'
    """
    if len(deltas) < 3:
        return f"{len(deltas)} datasets are too few for a correlation"
    straight, ranked = float(pearsonr(deltas, gains).statistic), float(spearmanr(deltas, gains).statistic)
    return (
        f"correlation of Delta with the gain over {len(deltas)} datasets: {straight:.2f} (Pearson), "
        f"{ranked:.2f} (Spearman)"
    )


def _deltas_and_gains(points: dict[str, tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [delta for delta, _ in points.values()], [gain for _, gain in points.values()]


def _delta_chart(points: dict[str, tuple[float, float]]) -> ResultChart:
    ordered = sorted(points, key=lambda name: points[name][0])
    gains = tuple(100 * points[name][1] for name in ordered)
    nothing = tuple(None for _ in ordered)
    places = tuple(f"{name} {points[name][0]:.1f}" for name in ordered)
    return ResultChart(
        "Gain by Delta",
        "dataset and its Delta, smallest first",
        "gain over Top1Sim, %",
        places,
        (ChartSeries("gain", gains, nothing, nothing),),
    )


# How many distances attackers guess on these datasets at the bounds of figure 6


def attacker_table(study: PaperStudy, bench: StudyContext) -> ResultTable:
    """Return the exact success of the greedy attacker, and of one who knows the histogram of the distances, by tau."""
    rows = []
    for part in study.parts:
        if part.vary != "tau" or missing_data_note(part.dataset, bench.data):
            continue
        distance = _links_of_records(part, bench.data).distance
        scale = fit_scale(distance)
        for tau in part.values:
            sigma = sigma_for_bound(tau, scale.deviation)
            guesses = expected_success_rate(distance, scale, sigma), bayes_success(sigma, scale.deviation, distance)
            rows.append((part.title, *(f"{value:.3g}" for value in (tau, sigma, *guesses))))
    head = ("dataset", "tau", "sigma", "greedy attacker", "attacker who knows the histogram")
    return ResultTable("share of distances guessed exactly", head, tuple(rows))


# What the gates learnt on one dataset, and the neighbours of one record (appendix, "Visualization")
#
# The paper shows ``company``; firms generated here are linked by name as well, so their names can be shown.


EXPLAINED_RECORDS = 200


@dataclass(frozen=True, eq=False)
class GateInsight:
    """The sheet with the table of neighbours, and the data for the figures."""

    sheet: ResultSheet
    curves: Sequence[WeightCurve]
    importances: Sequence[MergeImportance]


def train_and_explain(epochs: int, bench: StudyContext) -> GateInsight:
    """Train FedSim on generated firms and inspect its gates."""
    began, firms = time.perf_counter(), generate_firms(np.random.default_rng(0))
    arrays = DatasetCases(firms.dataset()).one("random", 0)
    rung = Rung("fedsim", "FedSim", "fedsim", preset="paper", epochs=epochs, learning_rate=3e-3)
    parties, hooks = (rung.primary_data(arrays), rung.secondary_data(arrays)), bench.hooks("[1 of 1] firms, FedSim")
    result = train(*parties, arrays.split, rung.config(seed=0), hooks=hooks)
    bench.report(f"[1 of 1] firms: FedSim: {format_metrics(result.metrics['test'])}")
    seconds = time.perf_counter() - began
    line = {**environment_info(), "seed": 0, "seconds": seconds}
    curve = weight_curves(result.model)[0]
    names = firms.ours["name"].to_list(), firms.theirs["name"].to_list()
    sheet = ResultSheet(
        "figure-insight",
        "What the gates learnt",
        "Figure 10 (appendix)",
        "the weight rises with the similarity, and the nearest partners count most",
        (_neighbour_table(arrays, names, curve, firms.match),),
        says=(f"weight from {curve.weight[0]:.2f} at similarity -3 to {curve.weight[-1]:.2f} at 3",),
        notes=("generated firms instead of company, whose data could not be obtained",),
        facts=run_facts([line], seconds),
    )
    return GateInsight(sheet, [curve], _gate_importance(result.model, arrays))


def _neighbour_table(
    arrays: SplitArrays, names: tuple[list[str], list[str]], curve: WeightCurve, match: Integers
) -> ResultTable:
    """Return the partners of the first test record whose match is listed under another spelling."""
    linked = arrays.secondaries[0]
    misspelt = (int(row) for row in arrays.split.test if linked.equal[linked.list_of[row]] < 0)
    row = next(row for row in misspelt if match[row] in linked.partner[linked.list_of[row]])
    partner, similarity = linked.partner[linked.list_of[row]], linked.similarity[linked.list_of[row]]
    weight: Floats = np.interp(similarity, curve.similarity, curve.weight)
    rows = tuple(
        (names[1][there], f"{near:.2f}", f"{much:.2f}")
        for there, near, much in zip(partner, similarity, weight, strict=True)
    )
    return ResultTable(f"partners of '{names[0][row]}'", ("name", "similarity, scaled", "weight"), rows)


def _gate_importance(model: Model, arrays: SplitArrays) -> list[MergeImportance]:
    rows, linked = arrays.split.test[:EXPLAINED_RECORDS], arrays.secondaries[0]
    return merge_importance(model, arrays.primary.take(rows), [_list_neighbours(linked, linked.list_of[rows])])


def _list_neighbours(linked: LinkedSecondary, lists: Floats) -> Links:
    return Links(linked.partner[lists].astype(np.int64), linked.similarity[lists].astype(np.float64))
