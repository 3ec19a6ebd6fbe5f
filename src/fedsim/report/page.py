"""Templates filled in, everything put into them escaped, and pages written whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedsim.linkage.whole_file import whole_file


def rendered(template: str, **content: Any) -> str:
    """The page of a template of this folder."""
    pages = Environment(loader=PackageLoader("fedsim", "report"), autoescape=True, undefined=StrictUndefined)
    return pages.get_template(template).render(**content)


def write_page(page: str, path: Path | str) -> None:
    """Replace ``path`` by the page."""
    with whole_file(Path(path)) as part:
        part.write_text(page, encoding="utf-8")
