"""Templates filled in; everything put into them is escaped."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def rendered(template: str, **content: Any) -> str:
    """The page of a template of this folder."""
    pages = Environment(loader=PackageLoader("fedsim", "report"), autoescape=True, undefined=StrictUndefined)
    return pages.get_template(template).render(**content)
