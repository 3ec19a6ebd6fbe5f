"""The report of a run gives the answer first, tells everything the folder holds, and stays inert and offline."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from browser import browser_page, needs_browser
from fedsim.config.job import read_job
from fedsim.errors import InputError
from fedsim.report.model_charts import waterfall_figure
from fedsim.report.page import escape_markdown
from fedsim.report.run_report import (
    ACTIVATIONS,
    EMBEDDED_ROWS,
    tree_notes,
    visibility_table,
    write_report,
)
from fedsim.runs.record import AbsenceMetrics, TreeSummary, read_run_record
from fedsim.runs.run_folder import run_path
from fedsim.runtime.run_local import run_local
from fedsim_lab.faults.local_job import create_local_job
from job_fixtures import EXAMPLE, lay_out, read_all
from run_fixtures import HOSTILE, classified, record_of, write_audit, write_ladder, write_run

TIP = """(() => {
  const shape = document.querySelector("[data-tip]"), box = shape.getBoundingClientRect();
  const place = {bubbles: true, clientX: box.left + 1, clientY: box.top + 1};
  shape.dispatchEvent(new PointerEvent("pointermove", place));
  document.title = shape.dataset.tip;
})()"""


def page_of(folder: Path) -> str:
    return write_report(folder).read_text(encoding="utf-8")


class Headings(HTMLParser):
    """Headings in their order, scripts, and links that leave the page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.scripts = 0
        self._level = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self._level = tag if tag in ("h1", "h2", "h3") else self._level

    def handle_endtag(self, tag: str) -> None:
        self._level = ""

    def handle_data(self, data: str) -> None:
        if self._level == "h2":
            self.found.append(data)


def read(page: str) -> Headings:
    parser = Headings()
    parser.feed(page)
    return parser


def test_the_answer_comes_first_then_every_part(tmp_path: Path) -> None:
    write_run(tmp_path, record_of())
    write_ladder(tmp_path)
    write_audit(tmp_path)
    page = page_of(tmp_path)
    assert page.index("worth 14 S$ less error") < page.index("test rmse") < page.index("<section")
    parts = ["What the partner adds", "Links", "Training", "What the gates learned"]
    parts += ["Predictions on the test records", "Why these predictions", "Privacy", "Cost", "Settings and versions"]
    assert read(page).found == parts
    assert page.index("guarantee: greedy") < page.index("<section")


@pytest.mark.parametrize(
    ("protection", "method", "seen"),
    [
        ("", "fedsim", [False, True]),
        ('embedding = "random"', "stacked", [True, True]),
        ('gradients = "none"', "fedsim", [True, False]),
    ],
)
def test_the_embedding_is_in_the_table_of_who_received_what(
    tmp_path: Path, protection: str, method: str, seen: list[bool]
) -> None:
    text = (EXAMPLE / "job.toml").read_text().replace('method = "fedsim"', f'method = "{method}"')
    (tmp_path / "job.toml").write_text(f"{text}\n[protection]\n{protection}\n")
    job = read_job(tmp_path / "job.toml")
    table = visibility_table(job)
    cells = {name: to_primary for name, to_primary, *_ in table.rows}
    rows = [cells.get(EMBEDDED_ROWS, ""), cells[ACTIVATIONS]]
    assert ["unprotected" in cell for cell in rows] == seen
    assert job.sends_embedding == seen[0]


def test_a_job_without_a_coordinator_has_no_column_for_one(tmp_path):
    job = create_local_job(tmp_path / "job", direct=True, n_secondaries=2).job
    cells = {name: (primary, secondary) for name, primary, secondary in visibility_table(job).rows}
    assert "200 metres" in cells["identifiers of a secondary"][0]
    assert "random points" in cells["identifiers of the primary"][1]


def test_distances_are_said_to_stay_with_the_coordinator(tmp_path):
    write_run(tmp_path, record_of())
    assert "Distances stay with the coordinator" in page_of(tmp_path)


def test_without_a_ladder_the_page_says_how_to_get_one(tmp_path: Path) -> None:
    write_run(tmp_path, record_of())
    page = page_of(tmp_path)
    assert "has not been measured yet" in page
    run = f"{tmp_path.parent.name}/{tmp_path.name}"
    arguments = f"job.toml city.toml left.toml rentals.toml --out {run}/compare && fedsim report {run}"
    assert f"fedsim compare {arguments}" in html.unescape(page)
    assert "RUN" not in page
    assert "What the partner adds" not in read(page).found


@pytest.mark.parametrize("other", [{"job": "others"}, {"hash": "b" * 64}])
def test_a_ladder_and_an_audit_of_another_job_are_not_believed(tmp_path: Path, other: dict[str, Any]) -> None:
    write_run(tmp_path, record_of())
    write_ladder(tmp_path, **other)
    write_audit(tmp_path, job_hash="b" * 64)
    page = page_of(tmp_path)
    assert page.count("in this folder belongs to another job") == 2
    assert "worth 14 S$" not in page
    assert "Attacks by" not in page
    assert "This job has not been audited" not in (card := (tmp_path / "model-card.md").read_text())
    assert "belongs to another job" in card


def test_a_ladder_with_the_jobs_own_hash_is_believed(tmp_path: Path) -> None:
    write_run(tmp_path, record_of())
    write_ladder(tmp_path, hash=record_of().hash)
    assert "worth 14 S$" in page_of(tmp_path)


def test_the_page_says_which_rung_the_runs_own_model_is_held_against(tmp_path: Path) -> None:
    write_run(tmp_path, record_of())
    write_ladder(tmp_path, hash=record_of().hash)
    page = html.unescape(page_of(tmp_path))
    assert "Compare it with FedSim, 51 over 3 seeds (random split)" in page
    assert "Compared." in page
    write_ladder(tmp_path, seeds=1)
    assert "Compare it with FedSim, 51 (random split)" in page_of(tmp_path)
    write_run(tmp_path, record_of("name", method="avgsim"))
    assert "Compare it with" not in page_of(tmp_path)


def test_a_match_gate_shows_the_share_without_a_match(tmp_path: Path) -> None:
    plain = record_of("name")
    write_run(tmp_path / "plain", plain)
    lists = [replace(links, unmatched=0.28) for links in plain.lists]
    write_run(tmp_path / "matched", replace(plain, lists=lists))
    before, page = (page_of(tmp_path / name) for name in ("plain", "matched"))
    assert page.count("28 %") > before.count("28 %")


def test_a_waterfall_leads_from_average_partner_records_to_the_prediction(tmp_path: Path) -> None:
    example = record_of().explained[0]
    figure = waterfall_figure("record A", example.explanation, example.truth, "price")
    shown = [example.explanation.average, *(one.effect for one in example.explanation.partners)]
    assert sum(shown) == pytest.approx(example.explanation.value)
    assert [row[:2] for row in figure.rows][:2] == [("rentals no. 4", "+8"), ("rentals no. 5", "−5")]
    assert figure.rows[-1][:2] == ("rentals, 1 further record", "+0.5")
    write_run(tmp_path, record_of())
    assert "+40.2" in page_of(tmp_path)  # of an own column


def test_a_waterfall_says_whether_a_secondary_is_away_or_average_and_shows_similarity_and_weight() -> None:
    example = record_of().explained[0]
    captions = []
    for away in (False, True):
        found = replace(example.explanation, away=away)
        figure = waterfall_figure("record A", found, example.truth, "price")
        captions.append("average" in figure.caption)
        first = found.partners[0]
        assert f"rentals no. 4: similarity {first.similarity:.2g}, weight {first.weight:.2g}" in figure.picture
    assert captions == [True, False]


def test_a_long_name_of_a_secondary_never_hides_similarity_or_weight() -> None:
    found = record_of().explained[0].explanation
    partners = [replace(one, secondary="a-very-long-name-of-a-secondary", effect=41_000.0) for one in found.partners]
    for without in ({"one": 1.0}, {"one": 1.0, "two": 2.0}):
        figure = waterfall_figure("record A", replace(found, partners=partners, without=without), 500.0, "price")
        assert figure.picture.count('"start">a-very') == (len(without) - 1) * len(partners[:5])
        assert len(re.findall(r"weight [\d.]+<", figure.picture)) == 5


def test_charts_of_a_notebook_have_the_style_of_every_kind_of_bar() -> None:
    shown = record_of().explained[0].explanation._repr_html_()
    classes = {name for names in re.findall(r'class="bar ([\w ]+)"', shown) for name in names.split()}
    assert classes == {"falling", "strong"}
    assert all(f"svg .bar.{name} {{" in shown for name in classes)


def test_several_secondaries_are_told_apart_and_their_absence_is_measured(tmp_path: Path) -> None:
    away = [AbsenceMetrics(None, 120, {"rmse": 5.0}), AbsenceMetrics("left", 120, {"rmse": 5.75})]
    write_run(tmp_path, replace(record_of(), absence=away))
    gain = {"estimate": 3.25, "low": 1.5, "high": 4.5}
    share = {"secondary": "left", "split": "random", **gain, "features": {**gain, "estimate": 2.125}}
    write_ladder(tmp_path, partners=[share, {**share, "split": "group"}])
    page = page_of(tmp_path)
    assert page.count("Contribution by secondary") >= 2
    assert "2.12 (1.5 to 4.5)" in page
    assert "+15 %" in page


def test_examples_have_neither_row_nor_identifier_unless_the_owner_asks(tmp_path: Path) -> None:
    lay_out(tmp_path)
    job, files = read_all(tmp_path)
    run_local(job, list(files.values()))
    folder = run_path(job, files["city"])
    row = read_run_record(folder).explained[0].row
    places = [line.split(",")[:2] for line in (tmp_path / "flats.csv").read_text().splitlines()[1:]]
    page, named = page_of(folder), write_report(folder, named=files["city"]).read_text(encoding="utf-8")
    assert "record A</td>" in page
    assert not re.search(r"row \d", page)
    assert f"row {row + 1}:" in named
    assert f"lat {places[row][0]}, lon {places[row][1]}" in named
    assert not [cell for place in places for cell in place if cell in page]
    assert ("IDENTIFIERS" in page, "IDENTIFIERS" in named) == (False, True)
    flats = (tmp_path / "flats.csv").read_text().splitlines(keepends=True)
    (tmp_path / "flats.csv").write_text("".join([flats[0], *flats[:0:-1]]))
    with pytest.raises(InputError) as caught:
        write_report(folder, named=files["city"])
    assert caught.value.code == "table-changed"


def test_the_choice_of_k_is_judged(tmp_path: Path) -> None:
    quantiles = np.linspace(1, -1, 6)[:, None] + np.linspace(-0.2, 0.2, 5)
    record = record_of()
    lists = [replace(links, similarity_by_rank=quantiles.tolist()) for links in record.lists]
    write_run(tmp_path, replace(record, lists=lists))
    assert "Similarity falls evenly" in page_of(tmp_path)


def test_errors_by_a_column_that_links_are_not_told(tmp_path: Path) -> None:
    write_run(tmp_path, record_of("name"))
    assert "Error by name" not in page_of(tmp_path)
    assert "| name |" not in (tmp_path / "model-card.md").read_text()


def test_every_chart_has_words_and_a_table(tmp_path: Path) -> None:
    write_run(tmp_path, record_of())
    write_ladder(tmp_path)
    page = page_of(tmp_path)
    drawn = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]  # noqa: S314
    # Ladder, links of two partners, curves, gates, predictions, examples.
    assert len(drawn) == 4 + 4 + 2 + 2 + 3 + 3
    assert all(svg.find("title") is not None and (svg.findtext("desc") or "") for svg in drawn)
    assert page.count("<summary>Show the numbers</summary>") == len(drawn)
    assert not re.search(r"\b(nan|inf)\b", page)


def test_settings_bytes_and_protections_are_told(tmp_path: Path) -> None:
    write_run(tmp_path, record_of(method="fedsim", epochs=12))
    page = page_of(tmp_path)
    for text in ("tau", "1.1 MB", "1 min 15 s", "0.1.0"):
        assert text in page
    assert str(tmp_path) not in page


def test_the_page_runs_no_script_but_its_own(tmp_path: Path) -> None:
    write_run(tmp_path, classified(record_of(HOSTILE), HOSTILE, "b"))
    write_ladder(tmp_path, worth=HOSTILE)
    write_audit(tmp_path, HOSTILE)
    page = page_of(tmp_path)
    assert read(page).scripts == 1
    assert re.search(r"default-src 'none'; .*script-src &#39;sha256-|script-src 'sha256-", page)
    assert not re.findall(r"https?://|@import|url\((?!#)", page)


def test_classes_are_shown_as_a_table_with_their_certainty(tmp_path: Path) -> None:
    write_run(tmp_path, classified(record_of(), "cheap", "dear"))
    page = page_of(tmp_path)
    assert "Predicted against actual classes" in page
    assert "Calibration" in page
    assert 'id="gates"' not in page
    assert "overconfident" in page
    assert "overconfident" in (tmp_path / "model-card.md").read_text()


def test_the_model_card_has_the_worth_the_metrics_and_who_received_what(tmp_path: Path) -> None:
    write_run(tmp_path, record_of(HOSTILE))
    write_ladder(tmp_path)
    page_of(tmp_path)
    words = (tmp_path / "model-card.md").read_text()
    assert "| test | rmse | 5.5 |" in words
    assert "worth 14 S$ less error" in words
    assert "## Who received what" in words
    assert "<script" not in words.replace(escape_markdown("<script"), "")


@pytest.mark.parametrize(
    ("trees", "shown"), [(TreeSummary(0.35, ["name"], ["rentals"]), 1), (TreeSummary(0.0), 1), (None, 0)]
)
def test_report_and_model_card_name_the_trees(tmp_path: Path, trees: TreeSummary | None, shown: int) -> None:
    write_run(tmp_path, replace(record_of(), trees=trees))
    page, notes = page_of(tmp_path), list(tree_notes(replace(record_of(), trees=trees)))
    assert len(notes) == shown
    assert all(note in html.unescape(page) for note in notes)
    assert all(escape_markdown(note) in (tmp_path / "model-card.md").read_text() for note in notes)


def test_a_run_whose_start_was_never_improved_marks_no_epoch(tmp_path: Path) -> None:
    write_run(tmp_path, replace(record_of(), best_epoch=0))
    assert "best epoch: 0" not in page_of(tmp_path)


def test_a_column_name_cannot_steer_the_terminal_that_shows_the_card(tmp_path: Path) -> None:
    write_run(tmp_path, record_of("area\x1b[2J\x9b"))
    page_of(tmp_path)
    card = (tmp_path / "model-card.md").read_text()
    assert escape_markdown("area\x1b[2J") in card
    assert all(letter.isprintable() for letter in card.replace("\n", ""))


READABLE = """(() => {
  for (const fold of document.querySelectorAll(".fold")) fold.open = true;
  for (const text of document.querySelectorAll("svg text")) {
    const drawing = text.ownerSVGElement, size = parseFloat(getComputedStyle(text).fontSize);
    const shown = size * drawing.getBoundingClientRect().width / drawing.viewBox.baseVal.width;
    if (shown < 11) throw new Error(`${shown} px: ${text.textContent}`);
  }
})()"""


@needs_browser
def test_letters_in_charts_can_be_read_on_a_phone(tmp_path: Path) -> None:
    write_run(tmp_path, record_of())
    write_ladder(tmp_path)
    write_audit(tmp_path)
    for width in (360, 400, 600, 1200):
        assert not browser_page(write_report(tmp_path), width, act=READABLE).overflows


@needs_browser
def test_a_phone_gets_folded_sections_that_links_open(tmp_path: Path) -> None:
    write_run(tmp_path, record_of())
    write_ladder(tmp_path)
    page = write_report(tmp_path)
    folded = "[...document.querySelectorAll('.fold')].map((fold) => Number(fold.open)).join('')"
    first, height = "1" + "0" * 8, "document.documentElement.scrollHeight < 5000"
    browser_page(page, 390, ready=f"{folded} === '{first}' && {height}")
    jump = "document.querySelector('nav a[href=\"#cost\"]').click()"
    browser_page(page, 390, act=jump, ready="document.querySelector('#cost .fold').open")
    browser_page(page, 1280, ready=f"{folded} === '{'1' * 9}'")


PRINTED = """(() => {
  const colour = (node, what) => getComputedStyle(node)[what];
  const dark = ["body", "figure", ".table"].filter((name) => !["rgb(255, 255, 255)", "rgba(0, 0, 0, 0)"].includes(
    colour(document.querySelector(name), "backgroundColor")));
  const tall = [...document.querySelectorAll("figure")].filter((card) => card.getBoundingClientRect().height > 700);
  const cards = [...document.querySelectorAll("figure, .table")];
  const torn = cards.filter((card) => colour(card, "breakInside") !== "avoid");
  if (colour(document.querySelector("footer"), "breakBefore") !== "avoid") throw new Error("the footer stands alone");
  if (dark.length + tall.length + torn.length) throw new Error(`${dark} ${tall.length} ${torn.length}`);
})()"""


@needs_browser
def test_paper_is_white_and_no_chart_is_cut(tmp_path: Path) -> None:
    write_run(tmp_path, record_of())
    write_ladder(tmp_path)
    page = browser_page(write_report(tmp_path), 700, act=PRINTED, media="print")
    assert (page.errors, page.overflows, "Show the numbers" in page.text) == ([], False, False)


@needs_browser
@pytest.mark.parametrize("classes", [(), (HOSTILE, "left", "c")], ids=["numbers", "classes"])
def test_a_browser_finds_nothing_to_complain_of(tmp_path: Path, classes: tuple[str, ...]) -> None:
    write_run(tmp_path, classified(record_of(HOSTILE), *classes) if classes else record_of(HOSTILE))
    write_ladder(tmp_path, worth=HOSTILE)
    write_audit(tmp_path, HOSTILE)
    for width in (400, 1200):
        page = browser_page(write_report(tmp_path), width, act=TIP, ready='!document.querySelector(".tip").hidden')
        assert (page.errors, page.requests, page.overflows) == ([], [], False), page.screenshot
        assert '<script>console.error("ran")</script>' in page.text
