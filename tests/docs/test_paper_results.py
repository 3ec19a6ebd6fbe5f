"""Every figure on the page of the paper's results equals a stored result."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from fedsim_lab.result_table import study_result_sheet
from fedsim_lab.stored_trainings import StoredTrainings
from fedsim_lab.study_config import read_study
from fedsim_lab.study_runner import StudyContext, run_study

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "results-paper.md"
STORED = PROJECT / "experiments" / "results" / "paper"
MARK = re.compile(r"<!-- stored: ([\w -]+?) -->")
SCORE = re.compile(
    r"-?[\d,]*\d\.\d+(?: ± \d+\.\d+)?"
)  # figures with decimals are measured, whole numbers may be counts
SETTINGS = {
    "0.0",
    "0.1",
    "0.2",
    "0.4",
    "0.001",
    "0.002",
    "0.003",
    "0.0001",
    "0.01",
    "0.005",
    "1.0",
    "0.3",
}  # noise, tau and learning rates


@dataclass(frozen=True)
class Section:
    """The text from one mark to the next mark or heading, and the results that it quotes."""

    stored: tuple[str, ...]
    text: str


def sections(page: str) -> Iterator[Section]:
    for mark, text in re.findall(r"(<!-- stored: .*? -->)(.*?)(?=<!-- stored: |\n## |\Z)", page, re.DOTALL):
        yield Section(tuple(MARK.match(mark)[1].split()), text)


def stored_scores(names: tuple[str, ...]) -> set[str]:
    """Return the figures in stored cells, sentences and notes: with deviation, and the mean by itself."""
    found = set()
    for name in names:
        sheet = json.loads((STORED / f"{name}.json").read_text())
        words = [cell for table in sheet["tables"] for row in table["rows"] for cell in row]
        for score in SCORE.findall(
            "\n".join([*words, *sheet["says"], *sheet["notes"], *map(str, sheet["facts"].values())])
        ):
            found |= {score, score.split(" ")[0]}
    return found


SECTIONS = list(sections(PAGE.read_text()))


@pytest.mark.parametrize("section", SECTIONS, ids=lambda one: one.stored[0])
def test_every_figure_of_a_section_is_a_stored_result(section: Section) -> None:
    known = stored_scores(section.stored) | SETTINGS
    quoted = set(SCORE.findall(re.sub(r"\(paper[^)]*\)|\]\([^)]*\)", "", section.text)))
    assert quoted - known - scores_of_the_paper(section.stored) == set()


def scores_of_the_paper(names: tuple[str, ...]) -> set[str]:
    """Return the paper's figures that studies state but no stored table repeats."""
    texts = [
        path.read_text() for name in names if (path := PROJECT / "experiments" / "paper" / f"{name}.toml").exists()
    ]
    numbers = {float(number) for text in texts for number in re.findall(r"\d+\.\d+", text)}
    return {f"{number:.{decimals}f}" for number in numbers for decimals in (2, 4)}


def test_the_leaderboard_shows_the_means_of_the_stored_trainings() -> None:
    trainings = pl.read_parquet(STORED / "leaderboard.parquet").filter(pl.col("split") == "group")
    means = trainings.group_by("name", "settings.name").agg(pl.col("test.rmse", "test.auc").mean())
    stored = {(name, method): auc if name == "game" else rmse for name, method, rmse, auc in means.iter_rows()}
    page = (PROJECT / "docs" / "results.md").read_text()
    table = page[page.index("| method | city |") : page.index("![films, group split")].strip().splitlines()
    (_, *names), _, *rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in table]
    shown = {(name, method): cell for method, *cells in rows for name, cell in zip(names, cells, strict=True) if cell}
    trained = stored.keys() & shown.keys()  # the others combine some of these
    assert len(trained) >= 50
    for key in trained:
        decimals = len(shown[key].split(".")[1])
        assert float(shown[key]) == pytest.approx(stored[key], abs=0.5 * 10**-decimals + 1e-9), key


def test_every_table_of_the_page_names_its_stored_results() -> None:
    lines, marked = PAGE.read_text().splitlines(), False
    for number, line in enumerate(lines):
        if line.startswith("## "):
            marked = False
        marked = marked or MARK.match(line) is not None
        assert marked or not line.startswith("|"), f"{PAGE.name}:{number + 1}"


def test_every_section_says_what_differs_from_the_paper() -> None:
    parts = re.split(r"\n## ", PAGE.read_text())[1:]
    measured = [
        part for part in parts if re.match(r"Table|Figure [5-9]|Figure 10", part) and not re.match(r"Table 9", part)
    ]
    lacking = [part.splitlines()[0] for part in measured if "Differs from the" not in part.replace("\n", " ")]
    assert lacking == ["Figure 5b: Delta and the gain over Top1Sim"]  # the trainings of table 1


def test_the_stored_trainings_of_random_identifiers_are_found(tmp_path: Path) -> None:
    study = read_study(PROJECT / "experiments" / "paper" / "table-modern-random.toml")
    bench = StudyContext(None, tmp_path, 2, stored=StoredTrainings(STORED / "trainings.jsonl"))
    sheet = study_result_sheet(study, run_study(study, bench), 0.0)
    stored = json.loads((STORED / "table-modern-random.json").read_text())
    assert json.loads(json.dumps(sheet.as_dict()))["tables"] == stored["tables"]


def test_a_figure_that_is_not_stored_is_noticed() -> None:
    page = "<!-- stored: figure-delta -->\n\nhouse 34.91\n\n## Next\n"
    (section,) = sections(page)
    assert set(SCORE.findall(section.text)) - stored_scores(section.stored) == {"34.91"}


def test_the_claims_open_the_page_and_each_has_a_verdict() -> None:
    text = PAGE.read_text()
    assert text.index("## The paper's claims") < text.index("## Table 1")
    claims = text[text.index("| claim |") : text.index("## Table 1")].strip().splitlines()[2:]
    verdicts = [line.split("|")[-2].strip() for line in claims]
    assert len(verdicts) >= 20
    assert all(verdict.startswith(("confirmed", "refuted", "in part", "not tested")) for verdict in verdicts)
