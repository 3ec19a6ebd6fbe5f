"""The attacks on a linkage, what a job promises against them, and builds that break the promise."""

from __future__ import annotations

import numpy as np
import pytest

from audit_fixtures import FAST, audited_linkage, primary_verdicts
from fedsim.config.job import Blur
from fedsim.linkage.private_linkage import LinkageConfig
from fedsim_audit import linkage_attacks
from fedsim_audit.attacks.attack_finding import MEDIAN_ERROR_METRES
from fedsim_audit.audit_report import Verdict, run_attacks


@pytest.mark.parametrize("seed", range(3))
def test_a_build_without_noise_is_caught(folder, monkeypatch, seed):
    honest = linkage_attacks.link_encoded_tables

    def broken(*arguments, **options):
        linking = arguments[3]
        quiet = LinkageConfig(linking.metric, linking.k)
        linked_as_promised, _ = honest(*arguments, **options)
        return linked_as_promised, honest(*arguments[:3], quiet, *arguments[4:], **options)[1]

    assert Verdict.BROKEN not in primary_verdicts(audited_linkage(folder, seed), seed).values()
    monkeypatch.setattr(linkage_attacks, "link_encoded_tables", broken)
    assert primary_verdicts(audited_linkage(folder, seed), seed)["greedy, distances"] is Verdict.BROKEN


@pytest.mark.parametrize("epsilon", [20.0, 5.0, 1.0])
def test_blurring_is_promised_and_kept(folder, epsilon):
    linkage = audited_linkage(folder, blur=Blur(latitude="lat", longitude="lon", epsilon_per_km=epsilon))
    found = primary_verdicts(linkage)
    assert found["link graph"] is found["likelihood"] is Verdict.KEPT


@pytest.mark.parametrize("seed", range(3))
def test_a_build_that_does_not_blur_is_caught(folder, monkeypatch, seed):
    monkeypatch.setattr(linkage_attacks.party_table, "blur_identifiers", lambda frame, terms, secret, table: frame)
    found = primary_verdicts(
        audited_linkage(folder, seed, blur=Blur(latitude="lat", longitude="lon", epsilon_per_km=0.5)), seed
    )
    assert Verdict.BROKEN in [found["link graph made consistent"], found["multilateration"]]


def test_blurring_moves_guesses_away(folder):
    def error(linkage):
        rows, _ = run_attacks("", linkage_attacks.place_attacks(linkage, FAST, np.random.default_rng(0)), FAST.memory)
        return min(row.found.figures[MEDIAN_ERROR_METRES] for row in rows)

    blurred = audited_linkage(folder, tau=None, blur=Blur(latitude="lat", longitude="lon", epsilon_per_km=0.5))
    assert error(blurred) > 2 * error(audited_linkage(folder, tau=None))
