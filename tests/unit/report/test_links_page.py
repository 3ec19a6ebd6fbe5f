"""The page about a linkage is whole, inert and offline, whatever the names and numbers are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest

from browser import browser_page, needs_browser
from fedsim.linkage import diagnose, link
from fedsim.privacy.geodesy import great_circle_metres
from fedsim.report.charts import MapLinks, band_figure, bin_edges, grid_map_figure, grid_positions, histogram_figure
from fedsim.report.links_page import example_pairs, links_page
from fedsim.report.page import PageSection, PageTable, render_template
from fedsim.report.svg import nice_range, tick_values
from fedsim.types import Floats, LinkageResult

HOSTILE = '</script><script>alert(1)</script><img src=x onerror=alert(1)> "left" & {{ 7 * 7 }} {% raw %}'
QUERIES = np.random.default_rng(0).random((50, 1))
Page = Callable[..., str]


def links_of(records: int = 80, candidates: int = 50, k: int = 6) -> LinkageResult:
    rng = np.random.default_rng(4)
    return link(rng.random((records, 2)), rng.random((candidates, 2)), metric="euclidean", k=k)


@pytest.fixture
def page() -> Page:
    """Return the page of some links."""
    return lambda links, **settings: links_page(links, diagnose(links), **settings)


def pictures(text: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]  # noqa: S314


class Balance(HTMLParser):
    """Counts tags that are opened and not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        if tag not in {"meta", "link"}:
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag


def test_the_page_asks_for_nothing_outside_itself(page: Page) -> None:
    text = page(links_of())
    assert not re.findall(r"(?:src|href)=\"(?!data:)", text)
    assert not re.findall(r"https?://|@import|url\((?!#)", text)
    assert "default-src 'none'" in text


def test_charts_in_a_notebook_style_nothing_but_themselves(tmp_path: Path) -> None:
    charts = links_of().plot(positions=np.random.default_rng(0).random((80, 2)))
    shown = charts._repr_html_()
    assert len(pictures(shown)) == len(charts.figures) == 6
    (style,) = re.findall(r"<style>(.*?)</style>", shown, re.DOTALL)
    assert (style.strip().startswith(".fedsim-figures {"), style.count("{"), ":root" in style) == (
        True,
        style.count("}"),
        False,
    )
    charts.save(tmp_path / "charts.html")
    assert len(pictures((tmp_path / "charts.html").read_text(encoding="utf-8"))) == 6


@pytest.mark.parametrize(("records", "k", "shown"), [(80, 20, (5, 3)), (2, 1, (2, 1))])
def test_links_in_a_notebook_show_the_nearest_partners_of_several_records(
    records: int, k: int, shown: tuple[int, int]
) -> None:
    links = links_of(records, 50, k)
    text = links._repr_html_()
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", text)[1:]]
    assert [(int(record), int(rank)) for record, rank, *_ in rows] == [
        (record, rank + 1) for record in range(shown[0]) for rank in range(shown[1])
    ]
    assert ("to_pandas" in text) == (k > 1)


def test_hostile_names_stay_text(page: Page) -> None:
    text = page(links_of(), title=HOSTILE)
    parser = Balance()
    parser.feed(text)
    assert parser.opened == []
    assert parser.scripts == 1  # that of the tooltips, whose hash is in the policy of the page
    assert "<img" not in text
    assert "&lt;/script&gt;" in text
    assert "{{ 7 * 7 }}" in text


def test_what_is_between_backticks_is_code_and_stays_text() -> None:
    table = PageTable("t", ("a",), (("use `<b>`",),), "as `fedsim init` proposes")
    section = PageSection("s", "title", ("run `fedsim check`",), tables=(table,))
    text = render_template("sections.html", sections=[section])
    assert re.findall(r"<code>(.*?)</code>", text) == ["fedsim check", "fedsim init", "&lt;b&gt;"]
    assert "`" not in re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL)


def test_every_chart_has_a_title_a_description_and_a_table(page: Page) -> None:
    text = page(links_of(), positions=np.tile([[1.3, 103.8], [1.4, 103.9]], (40, 1)))
    drawn = pictures(text)
    assert len(drawn) == 6
    assert all(svg.find("title") is not None and svg.find("desc") is not None for svg in drawn)
    assert text.count("<table>") == len(drawn)


def test_warnings_the_plan_and_the_time_are_shown(page: Page) -> None:
    links = links_of(records=3, candidates=50, k=1)
    text = page(links, seconds=75.0)
    assert links.plan.split(":")[0] in text
    assert "1 min 15 s" in text
    for warning in diagnose(links).warnings:
        assert warning.split()[0] in text


@pytest.mark.parametrize(("records", "candidates", "k"), [(1, 1, 1), (1, 5, 5), (2, 3, 1), (40, 300, 300)])
def test_extreme_sizes_draw_without_broken_numbers(page: Page, records: int, candidates: int, k: int) -> None:
    links = links_of(records, candidates, k)
    text = page(links, positions=np.random.default_rng(0).random((records, 2)))
    assert pictures(text)
    assert not re.search(r"\b(nan|inf)\b", text)


def test_records_at_the_same_place_draw(page: Page) -> None:
    same = link(np.zeros((5, 2)), np.zeros((4, 2)), metric="euclidean", k=3)
    assert not re.search(r"\b(nan|inf)\b", page(same, positions=np.zeros((5, 2))))


def test_no_place_is_in_the_page_unless_asked_for(page: Page) -> None:
    assert "Distance on the map" not in page(links_of())


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3.2, 0.9), (1e-7, 3e-7), (0, 123456), (5, 5), (0, 0)])
def test_an_axis_ends_on_ticks_that_cover_the_data(low: float, high: float) -> None:
    start, end = nice_range(low, high)
    assert start <= low <= high <= end
    assert start < end
    assert 2 <= len(tick_values(start, end)) <= 11


SIZES = [0.0, 5e-324, 1e-300, 1e-17, 1e-5, 1.0, 1.0 + 1e-13, 1e15, 1e17, 5e149, 1e300]


@pytest.mark.parametrize("low", SIZES)
@pytest.mark.parametrize("high", SIZES)
def test_values_of_any_size_are_drawn(low: float, high: float) -> None:
    values = np.array([low, high, high])
    words = {"title": "t", "caption": "c", "axis": "x"}
    for figure in (
        histogram_figure(values, **words),
        band_figure(np.sort(values)[:, None].repeat(5, axis=1), **words),
    ):
        assert not re.search(r"\b(nan|inf)\b", figure.picture)


@pytest.mark.parametrize("candidates", [QUERIES * 3 / 3, QUERIES + 1e17])
def test_distances_that_hardly_differ_are_drawn(page: Page, candidates: Floats) -> None:
    assert pictures(page(link(QUERIES, candidates, metric="euclidean", k=1)))


def test_whole_numbers_get_a_bin_each_and_a_far_tail_is_cut() -> None:
    assert bin_edges(np.array([0.0, 1.0, 2.0])).tolist() == [-0.5, 0.5, 1.5, 2.5]
    values = np.append(np.random.default_rng(0).random(999), 1000.0)
    assert bin_edges(values)[-1] < 2.0


def test_cells_of_the_map_hold_the_median_of_their_records() -> None:
    alone = grid_positions(np.zeros((3, 2)), np.array([5.0, 1.0, 3.0]))
    assert alone.value.tolist() == [3.0]
    everyone = grid_positions(np.random.default_rng(0).random((50_000, 2)), np.ones(50_000))
    assert everyone.records.sum() == 50_000


def test_a_cell_of_few_records_is_not_drawn(page: Page) -> None:
    grid = grid_positions(np.array([[0.0, 0.0]] * 3 + [[1.0, 1.0]] * 2), np.ones(5))
    assert grid.records.tolist() == [3]
    assert "Distance on the map" not in page(links_of(records=2), positions=np.eye(2))


def test_a_map_has_axes_and_a_scale_bar_of_the_right_length() -> None:
    rng = np.random.default_rng(1)
    places = rng.uniform([52.0, 13.0], [52.5, 13.8], (4000, 2))
    figure = grid_map_figure(places, rng.random(4000), title="Map", caption="")
    assert figure is not None
    text = str(figure.picture)
    ticks = {
        label: float(at) for at, label in re.findall(r'x="([\d.]+)" y="[\d.]+" text-anchor="middle">([\d.]+)°', text)
    }
    assert {"13.2", "13.6"} <= set(ticks)
    start, end = map(float, re.findall(r'd="M([\d.]+),[\d.]+L([\d.]+),[\d.]+" class="baseline"', text)[0])
    assert "10 km" in text
    metres = float(great_circle_metres(np.array([[52.25, 13.2]]), np.array([[52.25, 13.6]]))[0])
    assert (end - start) / (ticks["13.6"] - ticks["13.2"]) == pytest.approx(10_000 / metres, rel=0.02)


@pytest.mark.parametrize("known", [True, False], ids=["partner places", "own places only"])
def test_lines_lead_where_most_links_of_a_cell_lead(known: bool) -> None:
    rng = np.random.default_rng(3)
    ours, theirs, partner = rng.random((60, 2)), 0.2 + 0.6 * rng.random((40, 2)), rng.integers(0, 40, (60, 4))
    grid = grid_positions(ours, np.ones(60))
    found = MapLinks(partner, theirs if known else None).lines(grid)
    of_partner = [tuple(map(int, place)) for place in grid.locate(theirs)]
    for cell, ends in enumerate(found):
        links = partner[grid.member == cell].ravel().tolist()
        wanted: Counter[tuple[int, int]] = Counter()
        for link_ in links:
            if known and of_partner.count(of_partner[link_]) >= 3:
                wanted[of_partner[link_]] += 1
            for other in set(grid.member[(partner == link_).any(axis=1)].tolist()) - {cell, -1} if not known else ():
                wanted[int(grid.column[other]), int(grid.row[other])] += 1
        most = sorted((n for n in wanted.values() if n >= 3), reverse=True)
        assert [wanted[int(x), int(y)] for x, y in ends] == most[:6]
    assert any(found)


def test_example_pairs_go_from_the_best_to_the_worst_link() -> None:
    links = links_of()
    ours, theirs = (pl.DataFrame({"id": [f"{side}{row}" for row in range(1000)]}) for side in "ps")
    others = pl.DataFrame({"rent": range(1000), "id": ["own"] * 1000}), pl.DataFrame({"rooms": [None] * 1000})
    tables = example_pairs(links, (ours, theirs), others)
    assert all([row[0] for row in table.rows] == ["id", "rent", "id", "rooms"] for table in tables)  # identifiers first
    rows = [int(table.rows[0][1][1:]) for table in tables]
    assert [int(table.rows[0][2][1:]) for table in tables] == links.partner[rows, 0].tolist()
    nearest = links.distance[:, 0]
    assert nearest[rows].tolist() == sorted(nearest[rows].tolist())
    assert (nearest[rows[0]], nearest[rows[-1]]) == (nearest.min(), nearest.max())
    page = links_page(links, diagnose(links), examples=tables)
    assert (page.count('<table class="pair">'), page.count("<td>missing</td>")) == (len(tables), len(tables))


ZOOM = """document.querySelector(".zoom button").click();
const moved = new PointerEvent("pointermove", {clientX: 9, bubbles: true});
document.querySelector("svg.map [data-lines]").dispatchEvent(moved)"""


@needs_browser
def test_a_map_shows_lines_can_be_enlarged_and_shown_whole_again(tmp_path: Path) -> None:
    file, places = tmp_path / "links.html", np.random.default_rng(4).random((80, 2))
    links = link(places, places[:50], metric="great-circle", k=6)
    page = links_page(links, diagnose(links), positions=places, partners=places[:50])
    file.write_text(page, encoding="utf-8")
    drawn = "document.querySelector('svg.map .links').getAttribute('d').startsWith('M')"
    zoom = "document.querySelector('svg.map').dataset.zoom"
    assert browser_page(file, 400, act=ZOOM, ready=f"{zoom} === '2' && {drawn}").errors == []
    back = "; document.querySelectorAll('.zoom button')[2].click()"
    browser_page(file, 400, act=ZOOM + back, ready=f"{zoom} === '1'")


INSIDE = """[...document.querySelectorAll("svg.map .axes *")].every((mark) => {
  const [one, all] = [mark, mark.closest("svg")].map((node) => node.getBoundingClientRect());
  return one.left >= all.left - 20 && one.right <= all.right + 20 && one.top >= all.top - 9 && one.bottom <= all.bottom;
})"""
TICKS = "[...document.querySelectorAll('svg.map .axes text')].map(node => node.textContent).join()"


@needs_browser
@pytest.mark.parametrize("notebook", [False, True])
def test_axes_and_scale_bar_stay_in_view_and_are_relabelled_when_a_map_is_enlarged(
    tmp_path: Path, *, notebook: bool
) -> None:
    file, places = tmp_path / "links.html", np.random.default_rng(4).random((400, 2)) * 0.1 + [1.3, 103.8]
    links = link(places, places[:50], metric="great-circle", k=6)
    page = (
        links.plot(positions=places)._repr_html_() if notebook else links_page(links, diagnose(links), positions=places)
    )
    file.write_text(f"<!doctype html>{page}" if notebook else page, encoding="utf-8")
    press = "const press = name => document.querySelector(`.zoom [aria-label='${name}']`).click();"
    act = f"{press} const seen = [{TICKS}]; press('Zoom in'); seen.push({TICKS}); press('Move up'); seen.push({TICKS});"
    ready = f"new Set(seen).size === 3 && seen.every(text => /\\d k?m$/.test(text)) && {INSIDE}"
    assert browser_page(file, 400, act=act, ready=ready).errors == []
    whole = f"{act} press('Whole map')"
    browser_page(file, 1200, act=whole, ready=f"{TICKS} === seen[0] && {INSIDE}")
