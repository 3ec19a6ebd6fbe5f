"""Measure what attackers gain and what the model loses: tables for ``docs/privacy-results.md``.

Run one case with ``fedsim lab bench privacy tau``. ``tau``, ``places`` and ``protected`` run by default; their
trainings are short and use a sample of hdb and house, so that they take minutes on two cores: the errors show the cost
of a mechanism, not the quality a model can reach. ``sealed`` and ``preset`` train in full (:mod:`privacy_sealed`);
their options follow two dashes: ``fedsim lab bench privacy -- sealed preset --plan FOLDER``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

import numpy as np

import privacy_sealed
from fedsim.privacy.bounds import sigma_for_bound
from fedsim_audit.attacks.attack_finding import MEDIAN_ERROR_METRES, AttackFinding, binomial_estimate
from fedsim_audit.attacks.location_attacks import RANKED_CENTROID, TrueLocations, link_graph_attack
from fedsim_audit.attacks.similarity_attacks import expected_success_rate, likelihood_attack
from fedsim_lab.greedy_attack import greedy_attack
from privacy_links import NAMES, Linked, linked, read_case, rmse
from privacy_protected import EPOCHS as PROTECTED_EPOCHS, RECORDS as PROTECTED_RECORDS, measured

RECORDS, EPOCHS, TARGETS, NEAR = 4_000, 12, 500, 500.0
DRAWS = 4  # of the noise, for the greedy attack
TAUS = (1e-2, 1e-3, 1e-4)
SIGMAS = (0.0, 0.1, 0.4, 1.0, 4.0)
EPSILONS = (30.0, 10.0, 5.0, 2.0, 1.0)


def tau() -> Iterator[str]:
    """Yield the table of the paper's greedy attack under its bound, and of an attacker who weights all links."""
    yield f"{RECORDS:,} records of the primary, K = 50, trained {EPOCHS} epochs"
    yield ""
    yield "| data | tau | sigma | greedy, distance | greedy, filter (95 %) | all links, filter | test RMSE |"
    yield "|---|---|---|---|---|---|---|"
    for name in NAMES:
        case = read_case(name, RECORDS)
        links = linked(case)
        yield f"| {name} | alone | | | | | {rmse(case, None, EPOCHS):.2f} |"
        yield f"| {name} | no noise | 0 | | | | {rmse(case, links.seen(0.0), EPOCHS):.2f} |"
        for wanted in TAUS:
            yield f"| {name} {_under(links, wanted)}"


def places() -> Iterator[str]:
    """Yield the table of how close attackers get with the paper's noise and with blurred places."""
    yield f"{RECORDS:,} records of the primary, K = 50, trained {EPOCHS} epochs; median error in metres"
    yield ""
    yield "| data | mechanism | multilateration | link graph | test RMSE |"
    yield "|---|---|---|---|---|"
    for name in NAMES:
        case = read_case(name, RECORDS)
        links = linked(case)
        for sigma in SIGMAS:
            error = rmse(case, links.seen(sigma), EPOCHS)
            yield f"| {name} | sigma {sigma:g} | {_located(links, sigma)} | {error:.2f} |"
        for epsilon in EPSILONS:
            moved = linked(case, epsilon)
            error = rmse(case, moved.seen(0.0), EPOCHS)
            yield f"| {name} | blur, epsilon {epsilon:g} per km | {_located(moved, 0.0)} | {error:.2f} |"


def protected() -> Iterator[str]:
    """Yield the table of the preset against attacks at the cut, on two classes: price above the median or not."""
    yield f"{PROTECTED_RECORDS:,} records of the primary, K = 50, {PROTECTED_EPOCHS} epochs, price above its median"
    yield ""
    yield "| data | job | test AUC | labels, best attack | inversion R2 |"
    yield "|---|---|---|---|---|"
    for name in NAMES:
        yield from (f"| {name} | {row}" for row in measured(name))


def _under(links: Linked, wanted: float) -> str:
    sigma, rng = sigma_for_bound(wanted, links.seen(0.0).known_scale().deviation), np.random.default_rng(5)
    view, draws = links.seen(sigma), [links.seen(sigma, draw) for draw in range(DRAWS)]
    greedy = [greedy_attack(seen, links.codes, rng=rng) for seen in draws]
    distance = expected_success_rate(links.distance, view.known_scale(), sigma)
    together = likelihood_attack(view, links.codes, rng=rng, targets=TARGETS)
    error = rmse(links.case, view, EPOCHS)
    shares = f"{distance:.3e} | {_share(greedy)} | {together.score.value:.3g}"
    return f"| {wanted:g} | {view.sigma:.3g} | {shares} | {error:.2f} |"


def _located(links: Linked, sigma: float) -> str:
    view, own, truth = links.seen(sigma), links.own, TrueLocations(links.case.places[1], NEAR)
    rng = np.random.default_rng(6)
    found = link_graph_attack(view, own, truth, rng=rng, way=RANKED_CENTROID)
    return f"{found.figures[MEDIAN_ERROR_METRES]:,.0f}"


def _share(found: Sequence[AttackFinding]) -> str:
    """Return the success rate over all draws of the noise: at small taus, one draw has hardly any successes."""
    hits, trials = sum(round(one.score.value * one.targets) for one in found), sum(one.targets for one in found)
    score = binomial_estimate(hits, trials)
    return f"{score.value:.2e} ({score.low:.1e} to {score.high:.1e})"


CASES: dict[str, Callable[[], Iterator[str]]] = {"tau": tau, "places": places, "protected": protected}


def main(words: list[str] | None = None) -> None:
    """Print the tables of some cases; by default, those that take minutes."""
    parser = argparse.ArgumentParser("fedsim lab bench privacy --")
    known = [*CASES, *privacy_sealed.TABLES]
    parser.add_argument("cases", nargs="*", choices=[*known, []], metavar="CASE", help=", ".join(known))  # [] is none
    privacy_sealed.add_options(parser)
    asked = parser.parse_args(words or ())
    for case in asked.cases or CASES:
        if case in CASES:
            print(f"\n### {case}\n")
            for line in CASES[case]():
                print(line, flush=True)
    if sealed := [case for case in asked.cases if case in privacy_sealed.TABLES]:
        privacy_sealed.run(sealed, asked)
