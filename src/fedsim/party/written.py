"""What people write in a party file: paths, names of columns, names of parties, hashes of jobs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, Strict, ValidationInfo

from fedsim.data.sql_source import is_url
from fedsim.errors import SettingError
from fedsim.party.job import PartyName

LONGEST_NAME = 500
_SECRET = re.compile(r"[0-9A-Fa-f]{64,}")


def _beside(written: Any, info: ValidationInfo) -> Any:
    """A path as the party file means it: relative to the folder where that file lies."""
    if not isinstance(written, str) or not written or "\0" in written:
        raise SettingError("this is no path; give the name of a file, relative to this one")
    if is_url(written):
        raise SettingError("this is a URL; a database is named under data.url, with table or query beside it")
    if _SECRET.fullmatch(written):
        raise SettingError("this looks like a key itself; write it to a file readable by you alone and name that file")
    return Path((info.context or {}).get("folder", ""), written)


def _each_once(words: tuple[str, ...]) -> tuple[str, ...]:
    seen: set[str] = set()
    for word in words:
        if word in seen:
            raise SettingError(f"'{word[:60]}' stands there twice; name it once")
        seen.add(word)
    return words


COLUMN_NAMES = "a list of column names"
PARTY_NAMES = "a list of names of parties"
FileName = Annotated[Path, BeforeValidator(_beside), Field(title="a path, relative to this file")]
ColumnName = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, title="the name of a column")]
Columns = Annotated[tuple[ColumnName, ...], Strict(False), AfterValidator(_each_once), Field(title=COLUMN_NAMES)]
Names = Annotated[tuple[PartyName, ...], Strict(False), Field(title=PARTY_NAMES)]
Hashes = Annotated[
    tuple[Annotated[str, Field(pattern="^[0-9a-f]{12,64}$")], ...],
    Strict(False),
    Field(title="a list of job hashes, each of 12 to 64 digits from 0 to 9 and a to f"),
]
