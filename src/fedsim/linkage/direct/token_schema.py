"""The public schema by which both parties turn records into tokens: fields, kinds of tokens and weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedsim.errors import SettingError
from fedsim.linkage.direct.token_kinds import TokenKind, Tokens
from fedsim.linkage.encoding.column_encodings import IdentifierColumn
from fedsim.linkage.encoding.schema import MAX_FIELDS, element_from_dict, element_to_dict, read_columns
from fedsim.registry import TOKENS
from fedsim.types import Integers
from fedsim.validation import validate_number

TOKEN_VERSION = 1  # increment it whenever the same schema would produce other tokens


@dataclass(frozen=True, eq=False)
class FieldTokens:
    """The tokens of one field. Their records count only those that miss no cell: ``rows`` of the ``n`` of the table."""

    tokens: Tokens
    columns: list[IdentifierColumn]
    rows: Integers
    n: int

    def take(self, rows: Integers) -> FieldTokens:
        """Return the tokens of some rows of the table, ascending, which are numbered from 0."""
        kept = np.isin(self.rows, rows)
        number = np.cumsum(kept) - 1
        of = self.tokens.take(kept[self.tokens.record])
        columns = [column.take(np.flatnonzero(kept)) for column in self.columns]
        tokens = replace(of, record=number[of.record])
        return FieldTokens(tokens, columns, np.searchsorted(rows, self.rows[kept]), len(rows))


@dataclass(frozen=True)
class TokenField:
    """An identifier: its columns, the kind of its tokens, and its weight among the fields.

    Examples
    --------
    >>> from fedsim.linkage.direct import PlaceTokens
    >>> TokenField(("lat", "lon"), PlaceTokens(metres=200)).weight
    1.0
    """

    columns: tuple[str, ...]
    kind: TokenKind
    weight: float = 1.0

    def __post_init__(self) -> None:
        if len(self.columns) != self.kind.COLUMNS or not all(isinstance(name, str) and name for name in self.columns):
            message = f"{len(self.columns)} columns for tokens of kind '{self.kind.KIND}'; name {self.kind.COLUMNS}"
            raise SettingError(message, code="column-count", limit=self.kind.COLUMNS)
        validate_number(self.weight, "weight", above=0)


@dataclass(frozen=True)
class TokenSchema:
    """How records become tokens. It is part of the job, holds no secret, and depends on neither table.

    Parameters
    ----------
    fields
        The identifiers; a record without a value in one of them is compared by the others.

    Examples
    --------
    >>> from fedsim.linkage.direct import TextTokens
    >>> schema = TokenSchema((TokenField(("name",), TextTokens(samples=32)),))
    >>> TokenSchema.from_dict(schema.to_dict()).fingerprint == schema.fingerprint
    True
    """

    fields: tuple[TokenField, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.fields) <= MAX_FIELDS:
            message = f"{len(self.fields)} fields; a schema of tokens has between 1 and {MAX_FIELDS}"
            raise SettingError(message, code="field-count", limit=MAX_FIELDS)

    @property
    def columns(self) -> tuple[str, ...]:
        """All identifier columns, without duplicates."""
        return tuple(dict.fromkeys(name for field in self.fields for name in field.columns))

    @property
    def most(self) -> tuple[int, int]:
        """The most tokens by which a record looks for rows, and under which a row is listed."""
        asked, listed = zip(*(field.kind.most for field in self.fields), strict=True)
        return sum(asked), sum(listed)

    @cached_property
    def fingerprint(self) -> bytes:
        """A digest of 16 bytes that is equal if both parties read the same schema; part of every evaluated token."""
        text = json.dumps(["fedsim tokens", TOKEN_VERSION, self.to_dict()], sort_keys=True)
        return hashlib.sha256(text.encode()).digest()[:16]

    def row_tokens(self, records: Any, table: str = "secondary") -> list[FieldTokens]:
        """Return the tokens under which the rows of a table are listed, by field."""
        return [self._tokens(field, records, table, queries=False) for field in self.fields]

    def query_tokens(self, records: Any, table: str = "primary") -> list[FieldTokens]:
        """Return the tokens by which records look for rows, by field."""
        return [self._tokens(field, records, table, queries=True) for field in self.fields]

    def inputs(self, field: int, tokens: Sequence[int]) -> list[bytes]:
        """Return tokens of a field as inputs of the oblivious function: 16 bytes of schema, 2 of field, 8 of token."""
        head = self.fingerprint + field.to_bytes(2, "big")
        return [head + int(token).to_bytes(8, "big") for token in tokens]

    def to_dict(self) -> dict[str, Any]:
        """Return the schema in JSON types."""
        return {
            "fields": [
                {"columns": list(field.columns), **element_to_dict(field.kind), "weight": float(field.weight)}
                for field in self.fields
            ]
        }

    @classmethod
    def from_dict(cls, described: object) -> TokenSchema:
        """Return the schema described by :meth:`to_dict`; raise ``SettingError`` for anything unknown."""
        fields = described.get("fields") if isinstance(described, Mapping) and set(described) == {"fields"} else None
        if not isinstance(fields, list):
            raise SettingError("a schema of tokens is a table with the list 'fields'", code="wrong-type")
        return cls(tuple(_field(number, described) for number, described in enumerate(fields, 1)))

    def _tokens(self, field: TokenField, records: Any, table: str, *, queries: bool) -> FieldTokens:
        read = list(read_columns(records, field.columns, table).values())
        present = np.logical_and.reduce([column.present() for column in read])
        rows = np.flatnonzero(present)
        columns = read if present.all() else [column.take(rows) for column in read]
        found = field.kind.query_tokens(columns) if queries else field.kind.row_tokens(columns)
        return FieldTokens(found, columns, rows, len(present))


def _field(number: int, described: object) -> TokenField:
    where = f"field {number} of the schema of tokens"
    settings = dict(described) if isinstance(described, Mapping) else {}
    columns, weight = settings.pop("columns", None), settings.pop("weight", 1.0)
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        message = f"{where}: give columns, a list of names, and the kind of the tokens"
        raise SettingError(message, code="wrong-type", where=where)
    kind: TokenKind = element_from_dict(TOKENS, settings, where)
    return TokenField(tuple(columns), kind, weight)
