"""The reference of job and party files, from the same words as ``fedsim explain``."""

from __future__ import annotations

from collections.abc import Iterator

from fedsim.config.explain import SettingDoc, list_settings
from prose import plain

LEAD = """# Settings of job and party files

`fedsim explain KEY` prints the same for one of them; `fedsim explain --schema job` prints the JSON Schema, with which
editors complete and check the files. NAME stands for any name, as in `secondaries.NAME.k`.
"""
TITLES = {
    "job": "The job file: what all parties agree on, the same everywhere",
    "party": "The party file: what is a party's own business",
}


def settings_page() -> str:
    """Every setting of both files."""
    return "\n".join([LEAD, *(line for file in TITLES for line in _file(file))])


def _file(file: str) -> Iterator[str]:
    yield f"## {TITLES[file]}\n"
    for key in list_settings():
        if key.file == file and not key.inside:
            yield from _entry(key)


def _entry(key: SettingDoc) -> Iterator[str]:
    """A term and its definition, which every width can show."""
    kind = f" (kind `{key.of_kind}`)" if key.of_kind else ""
    default = f"`{key.default}`" if key.default else "it must be given" if key.required else "left out"
    yield f"`{key.name}`{kind}\n:   {plain(key.meaning)}"
    yield f"    *What it may be*: {plain(key.allowed)}. *Without it*: {default}.\n"
