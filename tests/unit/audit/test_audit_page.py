"""The page of an audit holds all of it and asks for nothing."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from fedsim.config.stored_audit import Adversary, AttackKind, Victim
from fedsim_audit.attacks.attack_finding import AttackFinding, IntervalEstimate
from fedsim_audit.audit_page import attack_figures, audit_page
from fedsim_audit.audit_report import NEVER_ATTACKED, AuditReport, AuditRow, AuditSettings, Guarantee
from fedsim_audit.cli.audit_output import findings_table


def row(score: float, most: float | None, kind: AttackKind = AttackKind.LIKELIHOOD) -> AuditRow:
    found = AttackFinding(
        kind.value, kind, Adversary.PRIMARY, "share", IntervalEstimate(score, score, score), 0.0, 10, "all", {}, 1.0
    )
    return AuditRow("<rentals>", Victim.SECONDARY, "its filter", found, Guarantee("tau=0.05", most))


def page(*rows: AuditRow) -> str:
    return audit_page(AuditReport("flats", "a" * 64, 0.01, rows, NEVER_ATTACKED, ("a note",)))


def test_a_broken_guarantee_stands_first_and_everything_is_escaped():
    found = page(row(0.9, 0.05))
    assert "BROKEN" in found
    assert "<rentals>" not in found
    assert "add noise to similarities" in found


def test_nothing_above_the_limit_is_said_calmly():
    found = page(row(0.001, 0.05))
    assert 'class="fine"' in found


def test_every_failing_attack_is_explained_and_no_other():
    found = page(row(0.2, 0.5), row(0.3, None, AttackKind.LIKELIHOOD), row(0.001, 0.5, AttackKind.DISTANCES))
    assert found.count("of the records of &lt;rentals&gt;") >= 2
    assert "hides too little" not in found


@pytest.mark.parametrize("kind", AttackKind)
def test_every_kind_of_attack_is_explained_in_one_sentence(kind):
    sentence = row(0.4, None, kind).explanation
    assert sentence.endswith(".")
    assert "{" not in sentence
    assert sentence.count(". ") == 0


def test_failing_attacks_are_red_in_the_terminal():
    rows = row(0.4, None), row(0.001, None, AttackKind.DISTANCES)
    table = findings_table(AuditReport("flats", "a" * 64, 0.01, rows, NEVER_ATTACKED, ()))
    assert [line.style for line in table.rows] == [None, "red", ""]


def test_the_page_asks_the_network_for_nothing():
    found = page(row(0.2, 0.05), row(0.5, None, AttackKind.LIKELIHOOD))
    assert not re.search(r"(src|href)=\"(?!data:)|@import|url\((?!#)", found)


def test_a_promise_against_several_attacks_is_written_once_and_named_by_its_number():
    found = page(row(0.2, 0.5), row(0.3, 0.5, AttackKind.DISTANCES), row(0.1, None, AttackKind.LIKELIHOOD))
    assert found.count("<li>tau=0.05.</li>") == 1
    assert found.count(">at most 0.5 (1)<") == 2
    assert ">(1)<" in found


def test_the_page_says_how_hard_the_audit_tried():
    report = AuditReport("flats", "a" * 64, 0.01, (row(0.2, 0.5),), NEVER_ATTACKED, ())
    found = audit_page(replace(report, settings=AuditSettings(epochs=1, targets=100, most_records=1000)))
    assert 'id="effort"' in found
    assert "at most 1,000 records" in found
    assert 'id="effort"' not in audit_page(report)


def test_only_attacks_above_the_limit_or_a_guarantee_are_red():
    found = [row(0.001, 0.05), row(0.5, None, AttackKind.LIKELIHOOD), row(0.004, 0.0001)]
    rows = [one.as_dict() for one in found]
    (figure,) = attack_figures(rows, limit=0.01)
    expected = [one["leak"] > 0.01 or one["verdict"] == "broken" for one in rows]
    dots = re.findall(r'<circle class="(bar[^"]*)"', str(figure.picture))
    assert [dot == "bar bad" for dot in dots] == expected
    assert True in expected
    assert False in expected
