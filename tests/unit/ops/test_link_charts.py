"""The page about a linkage is whole, inert and offline, whatever the names and numbers are."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from fedsim.linkage import diagnose, link
from fedsim.privacy.geodesy import great_circle_metres
from fedsim.report.charts import band_figure, histogram_figure
from fedsim.types import Floats, LinkageResult
from fedsim_ops.link_charts import grid_map_figure, grid_positions, plot_links

HOSTILE = '</script><script>alert(1)</script><img src=x onerror=alert(1)> "left" & {{ 7 * 7 }} {% raw %}'
QUERIES = np.random.default_rng(0).random((50, 1))
Page = Callable[..., str]


def links_of(records: int = 80, candidates: int = 50, k: int = 6) -> LinkageResult:
    rng = np.random.default_rng(4)
    return link(rng.random((records, 2)), rng.random((candidates, 2)), metric="euclidean", k=k)


@pytest.fixture
def page() -> Page:
    """Return the page of some links."""
    return lambda links, positions=None, title="Links": replace(plot_links(links, positions), title=title).to_page()


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


def test_every_chart_has_a_title_a_description_and_a_table(page: Page) -> None:
    text = page(links_of(), positions=np.tile([[1.3, 103.8], [1.4, 103.9]], (40, 1)))
    drawn = pictures(text)
    assert len(drawn) == 5
    assert all(svg.find("title") is not None and svg.find("desc") is not None for svg in drawn)
    assert text.count("<table>") == len(drawn)


def test_warnings_and_the_plan_are_shown(page: Page) -> None:
    links = links_of(records=3, candidates=50, k=1)
    text = page(links)
    assert links.plan.split(":")[0] in text
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


def test_a_cell_of_few_records_is_not_drawn(page: Page) -> None:
    grid = grid_positions(np.array([[0.0, 0.0]] * 3 + [[1.0, 1.0]] * 2), np.ones(5))
    assert grid.records.tolist() == [3]
    assert "Distance on the map" not in page(links_of(records=2), positions=np.eye(2))


def test_cells_of_the_map_hold_the_median_of_their_records() -> None:
    alone = grid_positions(np.zeros((3, 2)), np.array([5.0, 1.0, 3.0]))
    assert alone.value.tolist() == [3.0]
    everyone = grid_positions(np.random.default_rng(0).random((50_000, 2)), np.ones(50_000))
    assert everyone.records.sum() == 50_000


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
