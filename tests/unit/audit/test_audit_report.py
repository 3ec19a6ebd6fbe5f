"""What a row of an audit says: how much was gained, and whether a promise is broken beyond doubt."""

from __future__ import annotations

import pytest

from fedsim.config.stored_audit import Adversary, AttackKind, Victim
from fedsim_audit.attacks.attack_finding import AttackFinding, IntervalEstimate, binomial_estimate
from fedsim_audit.audit_report import AuditRow, Guarantee, Verdict

KIND = AttackKind.LIKELIHOOD


def row(score: IntervalEstimate, most: float | None = None, kind: AttackKind = KIND, blind: float = 0.0) -> AuditRow:
    found = AttackFinding(kind.value, kind, Adversary.PRIMARY, "share", score, blind, 10, "all")
    return AuditRow("rentals", Victim.SECONDARY, "its filter", found, Guarantee("a promise", most))


@pytest.mark.parametrize("trials", [10, 100, 10_000])
def test_fewer_records_do_not_pass_more_easily(trials):
    assert row(binomial_estimate(trials // 5, trials)).leak == pytest.approx(0.2)


def test_the_gain_is_counted_from_blind_guessing():
    assert row(IntervalEstimate(0.75, 0.6, 0.9), blind=0.5).leak == pytest.approx(0.5)


def test_a_score_just_above_its_promise_at_95_percent_is_not_broken_yet():
    assert row(IntervalEstimate(0.10, 0.055, 0.15), most=0.05).verdict is Verdict.KEPT
    assert row(IntervalEstimate(0.10, 0.075, 0.13), most=0.05).verdict is Verdict.BROKEN
