"""Pages and notebooks mark up code, and style nothing but themselves."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from fedsim.report.charts import histogram_figure, reuse_figure
from fedsim.report.page import FigureGroup, PageSection, PageTable, render_template


def pictures(text: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]  # noqa: S314


def test_charts_in_a_notebook_style_nothing_but_themselves(tmp_path: Path) -> None:
    values, labels = np.random.default_rng(0).random(80), {"title": "t", "caption": "c"}
    figures = (histogram_figure(values, axis="a", **labels), reuse_figure(np.arange(80), **labels))
    charts = FigureGroup("links", figures)
    shown = charts._repr_html_()
    assert len(pictures(shown)) == 2
    (style,) = re.findall(r"<style>(.*?)</style>", shown, re.DOTALL)
    assert (style.strip().startswith(".fedsim-figures {"), style.count("{"), ":root" in style) == (
        True,
        style.count("}"),
        False,
    )
    charts.save(tmp_path / "charts.html")
    assert len(pictures((tmp_path / "charts.html").read_text(encoding="utf-8"))) == 2


def test_what_is_between_backticks_is_code_and_stays_text() -> None:
    table = PageTable("t", ("a",), (("use `<b>`",),), "as `fedsim init` proposes")
    section = PageSection("s", "title", ("run `fedsim check`",), tables=(table,))
    text = render_template("sections.html", sections=[section])
    assert re.findall(r"<code>(.*?)</code>", text) == ["fedsim check", "fedsim init", "&lt;b&gt;"]
    assert "`" not in re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL)
