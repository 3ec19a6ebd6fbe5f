"""The JSON Schemas that are shipped with the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("schemas")
FILES = {"job": "job.schema.json", "party": "party.schema.json"}


def shipped_text(name: str) -> str:
    """The schema of ``job`` or ``party`` files, as text."""
    return (FOLDER / FILES[name]).read_text(encoding="utf-8")


def shipped(name: str) -> dict[str, Any]:
    """The same as a value."""
    found: dict[str, Any] = json.loads(shipped_text(name))
    return found
