"""The paper as a checklist, and the evidence that it names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from error_fixtures import raises
from fedsim.cli import main
from fedsim.errors import SettingError
from fedsim_lab.checklist import CHECKLIST_WIDTH, ChecklistItem, find_evidence, read_checklist, summary_line

PROJECT = Path(__file__).parents[3]
ITEMS = read_checklist()


def test_every_item_of_the_paper_is_named_once() -> None:
    named = [(item.place, item.item) for item in ITEMS]
    assert len(named) == len(set(named)) == 112


@pytest.mark.parametrize("reference", sorted({one for item in ITEMS for one in item.evidence}))
def test_every_piece_of_evidence_exists(reference: str) -> None:
    assert find_evidence(reference, PROJECT)


@pytest.mark.parametrize(
    "reference",
    [
        "tests/unit/lab/test_checklist.py::test_that_nobody_wrote",
        "tests/unit/lab/no_such_file.py",
        "docs/results-paper.md#no-such-heading",
        "src/fedsim_lab/checklist.py::NoSuchClass",
    ],
)
def test_evidence_that_does_not_exist_is_not_found(reference: str) -> None:
    assert not find_evidence(reference, PROJECT)


def test_commands_of_items_are_commands_of_fedsim() -> None:
    assert {item.command.split()[0] for item in ITEMS if item.command} == {"fedsim"}


def test_the_command_prints_every_item_and_ends_with_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["lab", "reproduce", "checklist"])
    lines = capsys.readouterr().out.splitlines()
    assert (end.value.code or 0, lines[-1]) == (0, summary_line(ITEMS))
    missing = [item for item in ITEMS if item.state == "missing"]
    assert sum(line.startswith("missing: ") for line in lines) == len(missing)
    assert max(len(line) for line in lines if "::" not in line and "#" not in line) <= CHECKLIST_WIDTH


def test_programs_get_every_item(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["lab", "reproduce", "checklist", "--json"])
    value = json.loads(capsys.readouterr().out)
    assert len(value["items"]) == len(ITEMS)
    assert value["counts"]["right"] == sum(item.state == "right" for item in ITEMS)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"state": "perhaps"}, "unknown-state"),
        ({"state": "right"}, "no-evidence"),
        ({"state": "missing"}, "reason-mismatch"),
        ({"state": "right", "evidence": ["x"], "reason": "y"}, "reason-mismatch"),
    ],
)
def test_an_item_needs_evidence_or_a_reason(settings: dict[str, object], code: str) -> None:
    with raises(SettingError, code=code):
        ChecklistItem("Table 1", "scores", **settings)
