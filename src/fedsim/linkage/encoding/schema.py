"""The encoding schema the parties agree on, its dictionary form, and the encoding of a table."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from datetime import date
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import narwhals as nw
import numpy as np
from narwhals.exceptions import DuplicateError

from fedsim.errors import InputError, SettingError, nearest_word
from fedsim.linkage.encoding.columns import ColumnValues, IdentifierColumn
from fedsim.linkage.encoding.key import Key
from fedsim.linkage.encoding.record_filters import (
    Balance,
    BitFlip,
    Combination,
    Concatenate,
    Hardening,
    OptionalGenerator,
    Sample,
    Shuffle,
    Union,
    XorFold,
)
from fedsim.registry import ENCODINGS, Registry
from fedsim.types import Bits, EncodedTable, Integers

# One field of a schema: which column, how it is encoded, what salts it


@runtime_checkable
class SchemaElement(Protocol):
    """A part of a schema, known in text by its kind."""

    KIND: ClassVar[str]


class FieldEncoding(Protocol):
    """Makes one packed filter of ``bits`` bits of every value of a column.

    An encoding may declare the cells that it reads as ``CELLS``: number, text (the default), date or key.
    """

    KIND: ClassVar[str]

    @property
    def bits(self) -> int: ...

    def encode(self, column: IdentifierColumn, subkey: bytes) -> Bits: ...


def cell_type(encoding: FieldEncoding) -> str:
    """Return what an encoding reads, a word of :class:`fedsim.cells.CellType`."""
    return str(getattr(encoding, "CELLS", "text"))


@runtime_checkable
class SaltedEncoding(Protocol):
    """An encoding whose hashes can depend on a second column."""

    def encode_salted(self, column: IdentifierColumn, salt: IdentifierColumn, subkey: bytes) -> Bits: ...


@runtime_checkable
class RankedEncoding(Protocol):
    """An encoding whose filters are runs of ones, known by two integers each."""

    def ranks(self, column: IdentifierColumn, subkey: bytes) -> Integers: ...


@dataclass(frozen=True)
class SchemaField:
    """A column and its encoding; ``salt`` names a second column whose value enters every hash of a text.

    Salt with something stable that both parties know without error, a year of birth: where it differs, the texts no
    longer match at all; where it is equal, q-gram statistics of the whole table no longer help an attacker.
    """

    column: str
    encoding: FieldEncoding
    salt: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("column", self.column), ("salt", self.salt)):
            if value is not None and not (isinstance(value, str) and value):
                raise SettingError(f"{name}={value!r} is no name of a column; give its name as text")
        if isinstance(self.encoding, type) or not isinstance(self.encoding, SchemaElement):
            raise SettingError(
                f"the encoding of field {self.column!r} is a {type(self.encoding).__name__}; give one such as "
                "StringFilter()"
            )
        if self.salt is not None and not isinstance(self.encoding, SaltedEncoding):
            raise SettingError(f"field {self.column!r} has a salt, but only text can be salted; leave the salt out")


# Parts of a schema as plain dictionaries and back; whatever is not understood is refused


ElementType = TypeVar("ElementType")


def element_to_dict(part: Any) -> dict[str, Any]:
    """The part's kind and settings, in types that JSON has.

    >>> from fedsim.linkage.encoding.filters import NumericFilter
    >>> element_to_dict(NumericFilter(0, 100, 5))
    {'kind': 'numeric', 'low': 0.0, 'high': 100.0, 'threshold': 5.0, 'bits': 1024}
    """
    settings = {field.name: _to_plain(field.type, getattr(part, field.name)) for field in dataclasses.fields(part)}
    return {"kind": part.KIND, **settings}


def element_from_dict(kinds: Mapping[str, type[ElementType]] | Registry, described: object, where: str) -> ElementType:
    """The part that :func:`describe` described; ``where`` tells the reader of an error which one."""
    settings = dict(require_mapping(described, where))
    kind = settings.pop("kind", None)
    if not isinstance(kind, str) or kind not in kinds:
        raise SettingError(f"{where}: kind {kind!r} is unknown{suggestion(kind, kinds)}")
    part: Any = kinds[kind]
    fields = {field.name: field for field in dataclasses.fields(part)}
    required = [name for name, field in fields.items() if field.default is dataclasses.MISSING]
    check_keys(settings, fields, required, f"{where} ({kind})")
    built: ElementType = part(**{name: _from_plain(fields[name].type, name, value) for name, value in settings.items()})
    return built


def require_mapping(described: object, where: str) -> Mapping[str, Any]:
    """``described``, if it is a table of settings."""
    if not isinstance(described, Mapping):
        raise SettingError(f"{where} is no table of settings; write {{...}}")
    return described


def require_list(described: object, where: str) -> list[Any]:
    """``described``, if it is a list."""
    if not isinstance(described, list | tuple):
        raise SettingError(f"{where} is no list; write [...]")
    return list(described)


def check_keys(given: Iterable[str], known: Iterable[str], required: Iterable[str], where: str) -> None:
    """Every given key is known and every required one given."""
    given, known = list(given), list(known)
    for key in given:
        if key not in known:
            raise SettingError(f"{where}: unknown setting {key!r}{suggestion(key, known)}")
    for key in required:
        if key not in given:
            raise SettingError(f"{where}: the setting {key!r} is missing; add it")


def suggestion(word: object, valid: Iterable[str]) -> str:
    """The end of an error message: the valid word that was probably meant, or all of them.

    >>> suggestion("treshold", ["low", "high", "threshold"])
    "; did you mean 'threshold'?"
    """
    close = nearest_word(word, valid)
    return f"; did you mean {close!r}?" if close else f"; choose from {', '.join(valid) or 'nothing'}"


def _to_plain(kind: object, value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, tuple):
        return [float(item) for item in value]
    # 5 and 5.0 are one setting, and must have one fingerprint.
    return float(value) if kind == "float" else value


def _from_plain(kind: object, name: str, value: Any) -> Any:
    if kind == "date":
        try:
            return date.fromisoformat(value)
        except (TypeError, ValueError):
            raise SettingError(f"{name}={value!r} is no date; write it like 2001-12-31") from None
    return tuple(value) if isinstance(value, list) else value


# A table at the door of a schema: columns by name, whatever library holds them


def named_columns(records: Any, table: str) -> Mapping[str, ColumnValues]:
    """The columns by name, of a mapping or a pandas, polars or Arrow table.

    Nothing else has names: the cells of a list of records must not be taken for them and shown in an error.
    """
    if isinstance(records, Mapping):
        return records
    try:
        frame = nw.from_native(records, pass_through=True, eager_only=True)
    except DuplicateError:
        raise InputError(f"table {table!r} has two columns of one name; rename one of them") from None
    if not isinstance(frame, nw.DataFrame):
        raise InputError(
            f"table {table!r} is a {type(records).__name__}; give columns by name: a dictionary, or a pandas, polars "
            "or Arrow table"
        )
    return {name: frame.get_column(name).to_native() for name in frame.columns}


def get_column(columns: Mapping[str, ColumnValues], name: str, table: str) -> IdentifierColumn:
    """The column of this name; where it is absent, the nearest name there is."""
    if name not in columns:
        raise InputError(f"table {table!r} has no column {name!r}{suggestion(name, [str(known) for known in columns])}")
    values = columns[name]
    if isinstance(values, str | bytes) or not (hasattr(values, "__len__") and hasattr(values, "__iter__")):
        raise InputError(f"table {table!r}, column {name!r} is a {type(values).__name__}; give a list or an array")
    return IdentifierColumn(values, name, table)


# What the parties agree on: which columns, how they become filters, how the filters are hardened


# Raise it whenever the same schema and key would give other bits: the fingerprints then part by themselves.
SCHEMA_VERSION = 1
MAX_FIELDS = 64

COMBINATIONS: dict[str, type[Combination]] = {kind.KIND: kind for kind in (Concatenate, Sample, Union)}
HARDENINGS: dict[str, type[Hardening]] = {kind.KIND: kind for kind in (Shuffle, XorFold, Balance, BitFlip)}


@dataclass(frozen=True)
class Schema:
    """How records become filters; every party encodes with the same schema and the same key.

    >>> from fedsim.linkage.encoding import NumericFilter, StringFilter
    >>> schema = Schema([SchemaField("name", StringFilter()), SchemaField("age", NumericFilter(0, 120, 5))])
    >>> schema.encode({"name": ["Ada", "Alan"], "age": [36, 41]}, Key(bytes(32)))
    EncodedTable(2 records x 2048 bits, fingerprint dc9139f068dc)
    """

    fields: Sequence[SchemaField]
    combine: Combination = dataclass_field(default_factory=Concatenate)
    hardening: Sequence[Hardening] = ()

    def __post_init__(self) -> None:
        # Tuples, so that equal schemas compare equal and cannot be changed behind their fingerprint.
        object.__setattr__(self, "fields", _check_parts("fields", self.fields, SchemaField, "Field(column, encoding)"))
        object.__setattr__(self, "hardening", _check_parts("hardening", self.hardening, SchemaElement, "Shuffle()"))
        _check_parts("combine", [self.combine], SchemaElement, "Concatenate()")
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

    def encode(self, records: Any, key: Key, rng: OptionalGenerator = None, table: str = "primary") -> EncodedTable:
        """The table as the coordinator may see it; ``rng`` is asked only by schemas that flip bits.

        ``records`` are a dictionary of columns or a pandas, polars or Arrow table; ``table`` is the name in errors.
        """
        if not isinstance(rng, OptionalGenerator):
            raise SettingError(f"rng is a {type(rng).__name__}; pass numpy.random.default_rng()")
        columns = named_columns(records, table)
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
        columns = named_columns(records, table)
        ranks = [
            _ranked_encoding(field).ranks(get_column(columns, field.column, table), self._subkey(key, f"field {index}"))
            for index, field in enumerate(self.fields)
        ]
        _check_lengths(ranks, self.fields, table)
        return np.hstack(ranks)

    def to_dict(self) -> dict[str, Any]:
        """The schema in types that JSON and TOML have, every setting spelt out."""
        return {
            "version": SCHEMA_VERSION,
            "fields": [_describe_field(field) for field in self.fields],
            "combine": element_to_dict(self.combine),
            "hardening": [element_to_dict(step) for step in self.hardening],
        }

    @classmethod
    def from_dict(cls, described: object) -> Schema:
        """The schema :meth:`to_dict` described; settings left out take their defaults, unknown ones are refused."""
        settings = require_mapping(described, "the schema")
        check_keys(settings, ("version", "fields", "combine", "hardening"), ("version", "fields"), "schema")
        if settings["version"] != SCHEMA_VERSION:
            raise SettingError(
                f"schema version {settings['version']!r} is not {SCHEMA_VERSION}, the one this release reads"
            )
        fields = require_list(settings["fields"], "schema, fields")
        steps = require_list(settings.get("hardening", ()), "schema, hardening")
        return cls(
            [_build_field(field, f"field {number}") for number, field in enumerate(fields, 1)],
            element_from_dict(COMBINATIONS, settings.get("combine", {"kind": Concatenate.KIND}), "combine"),
            [element_from_dict(HARDENINGS, step, f"hardening {number}") for number, step in enumerate(steps, 1)],
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
    def _encode_field(field: SchemaField, columns: Mapping[str, ColumnValues], subkey: bytes, table: str) -> Bits:
        column = get_column(columns, field.column, table)
        if field.salt is None or not isinstance(field.encoding, SaltedEncoding):
            return field.encoding.encode(column, subkey)
        salt = get_column(columns, field.salt, table)
        if len(salt) != len(column):
            raise InputError(f"table {table!r}: columns {column.name!r} and {salt.name!r} differ in length")
        return field.encoding.encode_salted(column, salt, subkey)


def _check_parts(name: str, given: Any, kind: type, example: str) -> tuple[Any, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise SettingError(f"{name} is a {type(given).__name__}; give a list such as [{example}]")
    parts = tuple(given)
    for part in parts:
        if isinstance(part, type) or not isinstance(part, kind):
            raise SettingError(f"{name} holds a {type(part).__name__}; give objects such as {example}")
    return parts


def _check_lengths(filters: Sequence[Bits | Integers], fields: Sequence[SchemaField], table: str) -> None:
    for field, bits in zip(fields, filters, strict=True):
        if len(bits) != len(filters[0]):
            raise InputError(f"table {table!r}: columns {fields[0].column!r} and {field.column!r} differ in length")


def _ranked_encoding(field: SchemaField) -> RankedEncoding:
    if not isinstance(field.encoding, RankedEncoding):
        raise SettingError(f"field {field.column!r} is {field.encoding.KIND}; only numbers and dates have ranks")
    return field.encoding


def _describe_field(field: SchemaField) -> dict[str, Any]:
    described = {"column": field.column, "encoding": element_to_dict(field.encoding)}
    # TOML has no null: a field without salt says nothing about it.
    return described if field.salt is None else {**described, "salt": field.salt}


def _build_field(described: object, where: str) -> SchemaField:
    settings = require_mapping(described, where)
    check_keys(settings, ("column", "encoding", "salt"), ("column", "encoding"), where)
    encoding: FieldEncoding = element_from_dict(ENCODINGS, settings["encoding"], f"{where}, encoding")
    return SchemaField(settings["column"], encoding, settings.get("salt"))
