"""What the parties agree on: which columns, how they become filters, how the filters are hardened."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

import numpy as np

from fedsim.errors import InputError, SettingError
from fedsim.linkage.encoding.columns import Values
from fedsim.linkage.encoding.dates import DateFilter
from fedsim.linkage.encoding.description import build, check_keys, describe, mapping, sequence
from fedsim.linkage.encoding.field import Described, Encoding, Field, Ranked, Salting
from fedsim.linkage.encoding.hardening import Balance, BitFlip, Chance, Hardening, Shuffle, XorFold
from fedsim.linkage.encoding.key import Key
from fedsim.linkage.encoding.numbers import NumericFilter
from fedsim.linkage.encoding.record import Combination, Concatenate, Sample, Union
from fedsim.linkage.encoding.strings import StringFilter
from fedsim.linkage.encoding.tables import column_of, columns_of
from fedsim.types import Bits, EncodedTable, Integers

# Raise it whenever the same schema and key would give other bits: the fingerprints then part by themselves.
VERSION = 1
MAX_FIELDS = 64

ENCODINGS: dict[str, type[Encoding]] = {kind.KIND: kind for kind in (NumericFilter, DateFilter, StringFilter)}
COMBINATIONS: dict[str, type[Combination]] = {kind.KIND: kind for kind in (Concatenate, Sample, Union)}
HARDENINGS: dict[str, type[Hardening]] = {kind.KIND: kind for kind in (Shuffle, XorFold, Balance, BitFlip)}


@dataclass(frozen=True)
class Schema:
    """How records become filters; every party encodes with the same schema and the same key.

    >>> schema = Schema([Field("name", StringFilter()), Field("age", NumericFilter(0, 120, 5))])
    >>> schema.encode({"name": ["Ada", "Alan"], "age": [36, 41]}, Key(bytes(32)))
    EncodedTable(2 records x 2048 bits, fingerprint dc9139f068dc)
    """

    fields: Sequence[Field]
    combine: Combination = dataclass_field(default_factory=Concatenate)
    hardening: Sequence[Hardening] = ()

    def __post_init__(self) -> None:
        # Tuples, so that equal schemas compare equal and cannot be changed behind their fingerprint.
        object.__setattr__(self, "fields", _parts("fields", self.fields, Field, "Field(column, encoding)"))
        object.__setattr__(self, "hardening", _parts("hardening", self.hardening, Described, "Shuffle()"))
        _parts("combine", [self.combine], Described, "Concatenate()")
        if not 1 <= len(self.fields) <= MAX_FIELDS:
            raise SettingError(f"a schema has 1 to {MAX_FIELDS} fields, this one {len(self.fields)}")
        if sum(isinstance(step, BitFlip) for step in self.hardening) > 1:
            raise SettingError("the schema flips bits twice, and only one epsilon can be stated; keep one bit-flip")
        list(self._sizes())

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns a table must have."""
        named = [name for field in self.fields for name in (field.column, field.salt) if name is not None]
        return tuple(dict.fromkeys(named))

    @property
    def n_bits(self) -> int:
        """Bits per record after hardening."""
        return list(self._sizes())[-1]

    @property
    def record_epsilon(self) -> float | None:
        """Differential privacy between any two records, all of whose bits may differ; None where no bit is flipped.

        A worst case, large at useful flip rates: 1,024 bits at epsilon 2 make 2,048.
        """
        for n_bits, step in zip(self._sizes(), self.hardening, strict=False):
            if isinstance(step, BitFlip):
                return step.record_epsilon(n_bits)
        return None

    def fingerprint(self, key: Key) -> str:
        """64 hexadecimal digits that stand for schema and key and reveal neither."""
        return self._subkey(key, "fingerprint").hex()

    def encode(self, records: Any, key: Key, rng: Chance = None, table: str = "primary") -> EncodedTable:
        """The table as the coordinator may see it; ``rng`` is asked only by schemas that flip bits.

        ``records`` are a dictionary of columns or a pandas, polars or Arrow table; ``table`` is the name in errors.
        """
        if not isinstance(rng, Chance):
            raise SettingError(f"rng is a {type(rng).__name__}; pass numpy.random.default_rng()")
        columns = columns_of(records, table)
        filters = [
            self._encode_field(field, columns, self._subkey(key, f"field {index}"), table)
            for index, field in enumerate(self.fields)
        ]
        _check_lengths(filters, self.fields, table)
        bits = self.combine.combine(filters, self._subkey(key, "combine"))
        for index, step in enumerate(self.hardening):
            bits = step.apply(bits, self._subkey(key, f"hardening {index}"), rng)
        return EncodedTable(bits=bits, n_bits=self.n_bits, fingerprint=self.fingerprint(key))

    def ranks(self, records: Any, key: Key, table: str = "primary") -> Integers:
        """First and last rank of every field in turn, shape (records, 2 x fields), for a preview at the holder.

        Linked by the metric ``rank-hamming`` they give the Hamming distances of the concatenated filters before
        hardening. Ranks show the order of the values: they are no encoding, and never leave the party.
        """
        columns = columns_of(records, table)
        ranks = [
            _ranked(field).ranks(column_of(columns, field.column, table), self._subkey(key, f"field {index}"))
            for index, field in enumerate(self.fields)
        ]
        _check_lengths(ranks, self.fields, table)
        return np.hstack(ranks)

    def to_dict(self) -> dict[str, Any]:
        """The schema in types that JSON and TOML have, every setting spelt out."""
        return {
            "version": VERSION,
            "fields": [_describe_field(field) for field in self.fields],
            "combine": describe(self.combine),
            "hardening": [describe(step) for step in self.hardening],
        }

    @classmethod
    def from_dict(cls, described: object) -> Schema:
        """The schema :meth:`to_dict` described; settings left out take their defaults, unknown ones are refused."""
        settings = mapping(described, "the schema")
        check_keys(settings, ("version", "fields", "combine", "hardening"), ("version", "fields"), "schema")
        if settings["version"] != VERSION:
            raise SettingError(f"schema version {settings['version']!r} is not {VERSION}, the one this release reads")
        fields = sequence(settings["fields"], "schema, fields")
        steps = sequence(settings.get("hardening", ()), "schema, hardening")
        return cls(
            [_build_field(field, f"field {number}") for number, field in enumerate(fields, 1)],
            build(COMBINATIONS, settings.get("combine", {"kind": Concatenate.KIND}), "combine"),
            [build(HARDENINGS, step, f"hardening {number}") for number, step in enumerate(steps, 1)],
        )

    def _sizes(self) -> Iterator[int]:
        """Bits per record after combining, then after every hardening step."""
        n_bits = self.combine.size([field.encoding.bits for field in self.fields])
        yield n_bits
        for step in self.hardening:
            n_bits = step.size(n_bits)
            yield n_bits

    def _subkey(self, key: Key, purpose: str) -> bytes:
        if not isinstance(key, Key):
            raise SettingError(f"the key is a {type(key).__name__}; make one with Key.generate() or Key.read(path)")
        # The whole schema enters every subkey: filters of two projects cannot be joined, even under one key.
        return key.derive(f"{purpose} of {json.dumps(self.to_dict(), sort_keys=True, separators=(',', ':'))}")

    @staticmethod
    def _encode_field(field: Field, columns: Mapping[str, Values], subkey: bytes, table: str) -> Bits:
        column = column_of(columns, field.column, table)
        if field.salt is None or not isinstance(field.encoding, Salting):
            return field.encoding.encode(column, subkey)
        salt = column_of(columns, field.salt, table)
        if len(salt) != len(column):
            raise InputError(f"table {table!r}: columns {column.name!r} and {salt.name!r} differ in length")
        return field.encoding.encode_salted(column, salt, subkey)


def _parts(name: str, given: Any, kind: type, example: str) -> tuple[Any, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise SettingError(f"{name} is a {type(given).__name__}; give a list such as [{example}]")
    parts = tuple(given)
    for part in parts:
        if isinstance(part, type) or not isinstance(part, kind):
            raise SettingError(f"{name} holds a {type(part).__name__}; give objects such as {example}")
    return parts


def _check_lengths(filters: Sequence[Bits | Integers], fields: Sequence[Field], table: str) -> None:
    for field, bits in zip(fields, filters, strict=True):
        if len(bits) != len(filters[0]):
            raise InputError(f"table {table!r}: columns {fields[0].column!r} and {field.column!r} differ in length")


def _ranked(field: Field) -> Ranked:
    if not isinstance(field.encoding, Ranked):
        raise SettingError(f"field {field.column!r} is {field.encoding.KIND}; only numbers and dates have ranks")
    return field.encoding


def _describe_field(field: Field) -> dict[str, Any]:
    described = {"column": field.column, "encoding": describe(field.encoding)}
    # TOML has no null: a field without salt says nothing about it.
    return described if field.salt is None else {**described, "salt": field.salt}


def _build_field(described: object, where: str) -> Field:
    settings = mapping(described, where)
    check_keys(settings, ("column", "encoding", "salt"), ("column", "encoding"), where)
    encoding = build(ENCODINGS, settings["encoding"], f"{where}, encoding")
    return Field(settings["column"], encoding, settings.get("salt"))
