"""Generate the reference of job and party files, like ``fedsim explain``."""

from __future__ import annotations

from collections.abc import Iterator

from fedsim.config.settings_schema import SettingDoc, list_settings
from prose import plain

LEAD = """# Settings of job and party files

`fedsim explain KEY` prints one of these entries; `fedsim explain --schema job` prints the JSON Schema, which editors
use to complete and validate the files. NAME stands for any name, as in `secondaries.NAME.k`.
"""
TITLES = {
    "job": "Job file: what all parties agree on",
    "party": "Party file: settings of one party",
}


def settings_page() -> str:
    """Return the page with every setting of both files."""
    return "\n".join([LEAD, *(line for file in TITLES for line in _file(file))])


def _file(file: str) -> Iterator[str]:
    yield f"## {TITLES[file]}\n"
    for key in list_settings():
        if key.file == file and not key.inside:
            yield from _entry(key)


def _entry(key: SettingDoc) -> Iterator[str]:
    """Yield a definition-list entry, which fits any screen width."""
    kind = f" (kind `{key.of_kind}`)" if key.of_kind else ""
    default = f"`{key.default}`" if key.default else "required" if key.required else "none"
    yield f"`{key.name}`{kind}\n:   {plain(key.meaning)}"
    yield f"    *Allowed*: {plain(key.allowed)}. *Default*: {default}.\n"
