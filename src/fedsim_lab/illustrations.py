"""Figures of the paper without training: the curve behind Delta, tau and epsilon by noise, titles near one title."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedsim.linkage import link
from fedsim.linkage.soft_linkage import fit_scale, improvement_from_links, similarities
from fedsim.privacy.bounds import lowest_bound, success_bound
from fedsim.types import Floats, LinkageResult
from fedsim_lab.dataset_cases import identifier_tables
from fedsim_lab.differential_privacy import PAPER_DELTA, least_epsilon, paper_sensitivity
from fedsim_lab.result_table import ChartSeries, ResultChart, ResultSheet, ResultTable, run_facts
from fedsim_lab.study_config import PaperStudy
from fedsim_lab.study_runner import StudyContext, load_sample, missing_data_note, part_cases

# Figure 4: the similarities of a record's partners, sorted. What Delta counts are areas beside this curve.


CURVE_PLACES = 21


def similarity_curves_sheet(study: PaperStudy, bench: StudyContext) -> ResultSheet:
    """Return the mean similarity by rank for every dataset of table 1, and the areas that Delta counts."""
    began, notes, rows, series = time.perf_counter(), list[str](), [], []
    for part in study.parts:
        absent = missing_data_note(part.dataset, bench.data)
        if absent:
            notes.append(absent)
            continue
        cases = part_cases(replace(part, vary="", values=[]), bench.data)
        links, list_of = cases.links[cases.taking_part[0].name], np.unique(cases.groups, return_inverse=True)[1]
        spread = replace(links, partner=links.partner[list_of], distance=links.distance[list_of])
        curve, delta = mean_similarity_by_rank(spread), improvement_from_links(spread)
        cells = (f"{links.k}", f"{curve.sum():.2f}", f"{delta.top1sim:.2f}", f"{delta.avgsim:.2f}")
        rows.append((part.title, *cells))
        places = np.linspace(0, links.k - 1, CURVE_PLACES).round().astype(int)
        nothing = (None,) * CURVE_PLACES
        series.append(ChartSeries(part.title, tuple(map(float, curve[places])), nothing, nothing))
    shares = tuple(f"{round(100 * place / (CURVE_PLACES - 1))} %" for place in range(CURVE_PLACES))
    head = ("dataset", "K", "area under the curve", "Delta(Top1Sim)", "Delta(AvgSim)")
    return ResultSheet(
        "figure-similarities",
        "Similarities of the partners, sorted",
        "Figure 4",
        "the area under the curve beyond the first partner is what Top1Sim loses; the area above it, up to K, is what "
        "AvgSim overrates",
        (
            ResultTable(
                "mean over the records, similarities scaled to [0, 1] over the partners of each", head, tuple(rows)
            ),
        ),
        (ResultChart("Mean similarity by rank", "rank, as a share of K", "similarity", shares, tuple(series)),),
        notes=(
            *notes,
            "the paper draws one schematic curve over all records of the secondary; these are over K partners",
        ),
        facts=run_facts([], time.perf_counter() - began),
    )


def mean_similarity_by_rank(links: LinkageResult) -> Floats:
    """Return the mean similarity of the first to the last partner, scaled to [0, 1] over each record's partners."""
    distance = np.sort(links.distance, axis=1)
    spread = distance[:, -1:] - distance[:, :1]
    near: Floats = 1 - (distance - distance[:, :1]) / np.where(spread > 0, spread, 1)
    mean: Floats = near.mean(axis=0)
    return mean


# Figure 7: what noise of a scale promises, as the bound tau on the greedy attack and as the least epsilon of Theorem 1


HOUSE_MEAN, HOUSE_SPREAD, HOUSE_RECORDS = -46237.78, 21178.86, 141_050  # the paper's figures
SIGMAS = (0.1, 0.2, 0.4, 1.0, 2.0, 4.0, 10.0)


def tau_epsilon_sheet() -> ResultSheet:
    """Return tau and the least epsilon for the paper's example by the scale of the noise."""
    sensitivity = paper_sensitivity(records=HOUSE_RECORDS, mean=HOUSE_MEAN, spread=HOUSE_SPREAD)
    taus = [success_bound(sigma, HOUSE_SPREAD) for sigma in SIGMAS]
    epsilons = [least_epsilon(sigma=sigma, sensitivity=sensitivity, delta=PAPER_DELTA) for sigma in SIGMAS]
    rows = tuple(
        (f"{sigma:g}", f"{tau:.3g}", f"{epsilon:.3g}")
        for sigma, tau, epsilon in zip(SIGMAS, taus, epsilons, strict=True)
    )
    places = tuple(f"{sigma:g}" for sigma in SIGMAS)
    return ResultSheet(
        "figure-tau-epsilon",
        "Tau and epsilon by the noise",
        "Figure 7 (appendix)",
        "epsilon stays astronomically large where tau is small",
        (ResultTable("house: mean -46,237.78, deviation 21,178.86", ("sigma", "tau", "least epsilon"), rows),),
        (_log_chart("tau", places, taus), _log_chart("least epsilon", places, epsilons)),
        says=(
            "the paper's tau of 1.94e-5 and epsilon of 2.96e9 belong to sigma = 4, as its appendix says; section 5.2 "
            f"says 0.4, where tau is {taus[SIGMAS.index(0.4)]:.3g}",
            f"no noise brings tau below {lowest_bound(HOUSE_SPREAD):.3g} with these distances",
        ),
        notes=("tau holds for normal similarities and the greedy attacker only",),
    )


def _log_chart(name: str, places: tuple[str, ...], values: Sequence[float]) -> ResultChart:
    nothing, logs = (None,) * len(values), tuple(float(np.log10(value)) for value in values)
    return ResultChart(
        f"{name} by sigma", "sigma", f"log10 of {name}", places, (ChartSeries(name, logs, nothing, nothing),)
    )


# Figures 1b and 10, left: the titles nearest to one title


TITLES = ("commandconquer3tiberiumwars", "sidmeierscivilizationv")  # the paper's example, and one with its series
SHOWN = 10
GAME_K = 50


def neighbours_sheet(bench: StudyContext) -> ResultSheet:
    """Return the titles of the secondary that are nearest to two titles of the primary, with their similarities."""
    began, absent = time.perf_counter(), missing_data_note("game", bench.data)
    tables = () if absent else tuple(_nearest_titles(bench))
    return ResultSheet(
        "figure-neighbours",
        "Titles similar to one title",
        "Figures 1b and 10, left",
        "the exact title comes first, then other parts of its series, then unrelated titles",
        tables,
        notes=((absent,) if absent else ())
        + ("game instead of company; a sample of 10,280 titles of RAWG, in which the paper's example is missing",),
        facts=run_facts([], time.perf_counter() - began),
    )


def _nearest_titles(bench: StudyContext) -> list[ResultTable]:
    dataset = load_sample("game", bench.data, 0)
    secondary = dataset.secondaries[0]
    ours, theirs = identifier_tables(dataset, secondary)
    links = link(ours, theirs, metric=secondary.link.metric, k=GAME_K)
    similarity = similarities(links.distance, fit_scale(links.distance))
    titles, names = ours["name"].to_list(), theirs["name"].to_list()
    found: list[ResultTable] = []
    for title in TITLES:
        row = titles.index(title)
        cells = tuple(
            (names[links.partner[row, rank]], f"{links.distance[row, rank]:.2f}", f"{similarity[row, rank]:.2f}")
            for rank in range(SHOWN)
        )
        found.append(ResultTable(f"nearest to '{title}'", ("title", "distance", "similarity, scaled"), cells))
    return found
