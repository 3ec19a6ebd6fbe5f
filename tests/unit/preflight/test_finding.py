"""A finding says what was seen and how to fix it, and whether one machine alone needs the fix."""

from __future__ import annotations

import pytest

from fedsim.errors import InputError
from fedsim.preflight.finding import CheckLevel, error_finding, info, ok


def test_an_error_without_a_fix_gets_the_default_one():
    finding = error_finding("data", InputError("the table is empty", code="empty-table"), "add records")
    assert (finding.result, finding.fix, finding.code) == ("the table is empty", "add records", "empty-table")


def test_only_the_last_part_of_a_message_is_the_fix():
    finding = error_finding("data", "cannot read flats.csv; it is locked; close the program", "unused")
    assert (finding.result, finding.fix) == ("cannot read flats.csv; it is locked", "close the program")


@pytest.mark.parametrize(("check", "expected"), [("certificate", True), ("port", True), ("data", False)])
def test_checks_of_the_network_do_not_stop_a_training_in_one_process(check, expected):
    assert error_finding(check, "failed").only_for_deployment is expected


def test_a_result_worth_reading_is_no_worse_than_one_that_is_not():
    assert info("data", "12 records").level is ok("data", "12 records").level is CheckLevel.OK
