"""The page of a comparison says what was found, with intervals, and what to check first."""

from __future__ import annotations

from pathlib import Path

from browser import browser_page, needs_browser
from fedsim.report.comparison_page import write_comparison_page
from run_fixtures import write_ladder

SIDES = [
    {"key": key, "split": "random", "estimate": score, "low": score - 2.0, "high": score + 2.0, "models": [key]}
    for key, score in (("alone", 60.0), ("placebo", 59.0), ("together", 56.0))
]


def page_of(folder: Path) -> Path:
    caveats = ["With only 12 test records the interval is rough; at least 100 are advisable."]
    write_ladder(folder, split="random", sides=SIDES, headline="It helps by 4 S$.", caveats=caveats, worth="both")
    return write_comparison_page(folder, title="flats with rentals", lead="A lead.", warnings=["The units differ."])


def test_the_page_has_headline_sides_caveats_and_warnings(tmp_path: Path) -> None:
    text = page_of(tmp_path).read_text()
    for words in ("It helps by 4 S$.", "without partner", "with a fake partner", "58 to 62", "Only 12", "units differ"):
        assert words.lower().removeprefix("only ") in text.lower()


def test_every_method_says_whether_it_has_the_partner(tmp_path: Path) -> None:
    text = page_of(tmp_path).read_text()
    for name in ("without: Solo", "fake: FedSim, shuffled links", "with: FedSim", "joined: Boosted trees on both"):
        assert name in text


@needs_browser
def test_the_page_fits_a_phone_and_a_desk_without_complaint(tmp_path: Path) -> None:
    path = page_of(tmp_path)
    for width in (390, 1280):
        shown = browser_page(path, width)
        assert (shown.errors, shown.requests, shown.overflows) == ([], [], False)
