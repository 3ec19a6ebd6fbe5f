"""The paper as a checklist: every claim, equation, line of the algorithm, table and figure, with state and evidence."""

import re
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from fedsim.errors import SettingError
from fedsim_lab.study_config import check_choice, parse_section

STATES = ("right", "wrong", "missing")
CHECKLIST_WIDTH = 80
INDENT = " " * 12


@dataclass(frozen=True)
class ChecklistItem:
    """One item of the paper.

    Parameters
    ----------
    place, item
        Where the paper has it, and what it is.
    state
        ``"right"``: built or measured here as in the paper; ``"wrong"``: done otherwise; ``"missing"``.
    evidence
        Tests (``path::name``), headings (``page#heading``), names in source files (``path::name``) or files.
    command
        How to see it.
    reason
        Why it is wrong or missing.
    """

    place: str
    item: str
    state: str
    evidence: list[str] = field(default_factory=list)
    command: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        check_choice(self.state, STATES, "state")
        if self.state == "right" and not self.evidence:
            raise SettingError(f"'{self.place}: {self.item}' is right without evidence; name some", code="no-evidence")
        if (self.state == "right") == bool(self.reason):
            message = f"'{self.place}: {self.item}' is {self.state}; only wrong and missing items have a reason"
            raise SettingError(message, code="reason-mismatch")


def read_checklist() -> list[ChecklistItem]:
    """Return the items in the order of the paper.

    >>> len(read_checklist())
    112
    """
    text = resources.files("fedsim_lab").joinpath("checklist.toml").read_text(encoding="utf-8")
    return [parse_section(ChecklistItem, words, "items") for words in tomllib.loads(text)["items"]]


def checklist_lines(items: Sequence[ChecklistItem]) -> Iterator[str]:
    """Return the checklist as text; wrong and missing items come again at the end, with their reasons."""
    for number, item in enumerate(items, start=1):
        first = f"{number:>3} {item.state:<7} {item.place}: {item.item}"
        yield from textwrap.wrap(first, CHECKLIST_WIDTH, subsequent_indent=INDENT)
        yield from (f"{INDENT}{evidence}" for evidence in item.evidence)
        if item.command:
            yield f"{INDENT}$ {item.command}"
    for state in ("wrong", "missing"):
        for item in items:
            if item.state == state:
                yield ""
                words = f"{state}: {item.place}: {item.item}. Reason: {item.reason}."
                yield from textwrap.wrap(words, CHECKLIST_WIDTH, subsequent_indent="  ")
    yield ""
    yield summary_line(items)


def summary_line(items: Sequence[ChecklistItem]) -> str:
    """Return the number of items by state.

    >>> summary_line([ChecklistItem("Table 3", "a survey", "missing", reason="nothing to run")])
    '0 right, 0 wrong, 1 missing'
    """
    counts = Counter(item.state for item in items)
    return ", ".join(f"{counts[state]} {state}" for state in STATES)


def find_evidence(reference: str, project: Path) -> bool:
    """Return whether a piece of evidence exists in the project's folder."""
    path, _, name = re.sub("#", "::", reference, count=1).partition("::")
    file = project / path
    if not name or not file.is_file():
        return file.exists() and not name
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return name in {_slug(title) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
    return re.search(rf"^\s*(def|class) {name}\b|^{name}\b.* = ", text, re.MULTILINE) is not None


def _slug(title: str) -> str:
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.lower())).strip("-")
