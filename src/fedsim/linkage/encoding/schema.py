"""The parties' secret key and encoding schema: its dictionary form, and the encoding of a table."""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import narwhals as nw
import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedsim.errors import FileError, InputError, SettingError, nearest_word
from fedsim.linkage.encoding.column_encodings import (
    DatePosition,
    IdentifierColumn,
    NumberPosition,
    PlacePosition,
)
from fedsim.registry import ENCODINGS, Registry, setting_type
from fedsim.storage.files import SecretSource, atomic_write, check_private, read_secret
from fedsim.types import Bits, EncodedTable
from fedsim.validation import MAX_FILTER_BITS

CONCATENATE = {"kind": "concatenate"}  # the filters of a record lie side by side, as every description has said
# Of earlier versions; descriptions that name one are refused.
REMOVED_KINDS = ("sample", "union", "shuffle", "xor-fold", "balance", "bit-flip", "words")
# Increment it whenever the same schema and key would produce different bits, so that the fingerprints differ.
SCHEMA_VERSION = 1
MAX_FIELDS = 64
KEY_BYTES = 32
_SALT = b"fedsim linkage key 1"
POSITIONS = (PlacePosition, NumberPosition, DatePosition)


@dataclass(frozen=True, repr=False)
class Key:
    """The secret that makes filters of several parties comparable; no ``repr`` or message ever shows it.

    Parameters
    ----------
    secret
        At least 32 random bytes.

    Examples
    --------
    >>> Key(bytes(32))
    Key(secret)
    """

    secret: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.secret, bytes) or len(self.secret) < KEY_BYTES:
            message = f"a key needs at least {KEY_BYTES} random bytes; create one with Key.generate()"
            raise SettingError(message, code="key-too-short")

    def __repr__(self) -> str:
        return "Key(secret)"

    @classmethod
    def generate(cls) -> Key:
        """Return a new random key."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def read(cls, path: SecretSource | str) -> Key:
        """Read a key from a file that :meth:`write` stored, an environment variable or a key server."""
        source = Path(path) if isinstance(path, str) else path
        try:
            content = read_secret(source)
        except OSError as error:
            raise FileError(f"cannot read the key file {path}: {error.strerror}", code="not-readable") from error
        try:
            key = cls(bytes.fromhex(content.decode("ascii").strip()))
        except (ValueError, SettingError):
            # Without the cause: a decoding error quotes the text, and the text is the secret.
            message = f"{path} is not a key of {2 * KEY_BYTES} or more hexadecimal digits; copy the other party's again"
            raise FileError(message, code="bad-key-file") from None
        check_private(source)
        return key

    def write(self, path: Path | str) -> None:
        """Store the key as hexadecimal digits in a file that only its owner may read; never overwrite a file."""
        path = Path(path)
        if path.exists():
            message = f"{path} exists and may be the only copy of a key; move it away or choose another name"
            raise FileError(message, code="file-exists")
        with atomic_write(path, mode=0o600) as part:
            part.write_text(self.secret.hex() + "\n", encoding="ascii")

    def derive(self, label: str) -> bytes:
        """Derive the 32-byte subkey for one purpose with HKDF-SHA256 (RFC 5869).

        Subkeys with different labels reveal nothing about each other, so what an attacker learns about the filters of
        one field does not help with another.

        >>> Key(bytes(32)).derive("pivots of age") == Key(bytes(32)).derive("pivots of size")
        False
        """
        return HKDF(SHA256(), length=KEY_BYTES, salt=_SALT, info=label.encode()).derive(self.secret)


@runtime_checkable
class SchemaElement(Protocol):
    """An element of a schema, identified by its kind in files."""

    KIND: ClassVar[str]


class FieldEncoding(Protocol):
    """Turns every value of a column into one packed filter of ``bits`` bits.

    An encoding may declare in ``CELLS`` which cells it reads: number, text (the default), date or key.
    """

    KIND: ClassVar[str]

    @property
    def bits(self) -> int: ...

    def encode(self, column: IdentifierColumn, subkey: bytes) -> Bits: ...


@runtime_checkable
class NormalisingEncoding(Protocol):
    """An encoding of text that cannot distinguish texts with the same normal form."""

    def normal_form(self, text: str) -> str: ...


def cell_type(encoding: FieldEncoding) -> str:
    """Return the cell type that an encoding reads, a value of :class:`fedsim.cells.CellType`.

    Parameters
    ----------
    encoding
        The encoding of a column.
    """
    return str(getattr(encoding, "CELLS", "text"))


@runtime_checkable
class SaltedEncoding(Protocol):
    """An encoding whose hashes can depend on a second column."""

    def encode_salted(self, column: IdentifierColumn, salt: IdentifierColumn, subkey: bytes) -> Bits: ...


@runtime_checkable
class PlaceEncoding(Protocol):
    """An encoding of places, which also reads a longitude column."""

    def encode_place(self, latitude: IdentifierColumn, longitude: IdentifierColumn, subkey: bytes) -> Bits: ...


@dataclass(frozen=True)
class SchemaField:
    """A column of the schema and its encoding.

    Parameters
    ----------
    column
        Name of the column.
    encoding
        How its values become filters, such as :class:`StringFilter`.
    salt
        A second column whose value is part of every hash of a text. Choose something stable that both parties know
        without errors, such as a year of birth. If it differs, the texts do not match at all; if it is equal, q-gram
        statistics of the complete table no longer help an attacker.
    longitude
        The column of the longitude, if the encoding is a place; ``column`` is then the latitude.

    Examples
    --------
    >>> from fedsim.linkage.encoding import StringFilter
    >>> SchemaField("name", StringFilter(), salt="born").salt
    'born'
    """

    column: str
    encoding: FieldEncoding
    salt: str | None = None
    longitude: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The encoded columns, without the salt."""
        return (self.column,) if self.longitude is None else (self.column, self.longitude)

    def __post_init__(self) -> None:
        for name, value in (("column", self.column), ("salt", self.salt), ("longitude", self.longitude)):
            if value is not None and not (isinstance(value, str) and value):
                raise SettingError(f"{name}={value!r} is not the name of a column", code="bad-column-name")
        if isinstance(self.encoding, type) or not isinstance(self.encoding, SchemaElement):
            kind = type(self.encoding).__name__
            message = f"the encoding of field {self.column!r} is a {kind}; give an object such as StringFilter()"
            raise SettingError(message, code="bad-encoding")
        if self.salt is not None and not isinstance(self.encoding, SaltedEncoding):
            raise SettingError(f"field {self.column!r} is not text; remove its salt", code="not-salted")
        if isinstance(self.encoding, PlaceEncoding) != (self.longitude is not None):
            rule = "encodings of places require the setting longitude, and other encodings do not allow it"
            raise SettingError(f"field {self.column!r}: {rule}", code="bad-longitude", column=self.column)


# Convert elements of a schema to plain dictionaries and back. Anything unknown is rejected.

ElementType = TypeVar("ElementType")


def element_to_dict(element: Any) -> dict[str, Any]:
    """Return the kind and settings of an element, in JSON types.

    >>> from fedsim.linkage.encoding.column_encodings import NumericFilter
    >>> element_to_dict(NumericFilter(0, 100, 5))
    {'kind': 'numeric', 'low': 0.0, 'high': 100.0, 'threshold': 5.0, 'bits': 1024}
    """
    settings: dict[str, Any] = {"kind": element.KIND}
    for field in dataclasses.fields(element):
        value = getattr(element, field.name)
        if isinstance(value, date):
            value = value.isoformat()
        elif isinstance(value, tuple):
            value = [item if isinstance(item, str) else float(item) for item in value]
        elif setting_type(field) == "float":  # 5 and 5.0 are one setting, and must have one fingerprint
            value = float(value)
        settings[field.name] = value
    return settings


def element_from_dict(kinds: Mapping[str, type[ElementType]] | Registry, described: object, where: str) -> ElementType:
    """Return the element described by :func:`element_to_dict`; ``where`` names it in errors."""
    settings = dict(_require(Mapping, described, where))
    kind = settings.pop("kind", None)
    if kind in REMOVED_KINDS:
        message = f"{where}: '{kind}' is gone; use the paper's filters, or link by tokens without a coordinator"
        raise SettingError(message, code="removed-setting", where=where)
    if not isinstance(kind, str) or kind not in kinds:
        raise SettingError(f"{where}: unknown kind {kind!r}{_suggest(kind, kinds)}", code="unknown-kind", where=where)
    element: Any = kinds[kind]
    fields = {field.name: field for field in dataclasses.fields(element)}
    required = [name for name, field in fields.items() if field.default is dataclasses.MISSING]
    _check_keys(settings, fields, required, f"{where} ({kind})")
    for name, value in settings.items():
        if setting_type(fields[name]) == "date":
            try:
                settings[name] = date.fromisoformat(value)
            except (TypeError, ValueError):
                raise SettingError(f"{name}={value!r} is not a date; write 2001-12-31", code="bad-date") from None
        elif isinstance(value, list):
            settings[name] = tuple(value)
    built: ElementType = element(**settings)
    return built


def _require(kind: Any, described: object, where: str) -> Any:
    if not isinstance(described, kind):
        form = "a table of settings, {...}" if kind is Mapping else "a list, [...]"
        raise SettingError(f"{where} must be {form}", code="wrong-type", where=where)
    return described


def _check_keys(given: Iterable[str], known: Iterable[str], required: Iterable[str], where: str) -> None:
    given, known = list(given), list(known)
    for key in given:
        if key not in known:
            message = f"{where}: unknown setting {key!r}{_suggest(key, known)}"
            raise SettingError(message, code="unknown-setting", where=where, name=key)
    for key in required:
        if key not in given:
            raise SettingError(f"{where}: add the setting {key!r}", code="missing-setting", where=where, name=key)


def _suggest(word: object, valid: Iterable[str]) -> str:
    close = nearest_word(word, valid)
    return f"; did you mean {close!r}?" if close else f"; choose from {', '.join(valid) or 'nothing'}"


def read_columns(records: Any, names: Sequence[str], table: str) -> dict[str, IdentifierColumn]:
    """Return the given columns of a mapping or a pandas, polars or Arrow table; their lengths must be equal."""
    columns = records
    if not isinstance(records, Mapping):
        try:
            frame = nw.from_native(records, pass_through=True, eager_only=True)
        except nw.exceptions.DuplicateError:
            message = f"table {table!r} has two columns with the same name; rename one"
            raise InputError(message, code="duplicate-column", table=table) from None
        # Nothing else has column names: cells of a list of records must not be taken for names and shown in an error.
        if not isinstance(frame, nw.DataFrame):
            message = f"table {table!r} is a {type(records).__name__}; give a dictionary of columns or a data frame"
            raise InputError(message, code="unknown-table-type", table=table)
        columns = {name: frame.get_column(name).to_native() for name in frame.columns}
    found: dict[str, IdentifierColumn] = {}
    for name in names:
        if name not in columns:
            message = f"table {table!r} has no column {name!r}{_suggest(name, [str(known) for known in columns])}"
            raise InputError(message, code="missing-column", table=table, column=name)
        values = columns[name]
        if isinstance(values, str | bytes) or not (hasattr(values, "__len__") and hasattr(values, "__iter__")):
            message = f"table {table!r}, column {name!r} is a {type(values).__name__}; give a list or an array"
            raise InputError(message, code="bad-column", table=table, column=name)
        found[name] = IdentifierColumn(values, name, table)
        if len(values) != len(found[names[0]]):
            message = f"table {table!r}: columns {names[0]!r} and {name!r} differ in length"
            raise InputError(message, code="ragged-table", table=table)
    return found


@dataclass(frozen=True)
class Schema:
    """How records are encoded as filters; every party uses the same schema and the same key.

    The filters of the fields lie side by side, so that Hamming distances add up.

    Parameters
    ----------
    fields
        The columns and their encodings.

    Examples
    --------
    >>> from fedsim.linkage.encoding import NumericFilter, StringFilter
    >>> schema = Schema([SchemaField("name", StringFilter()), SchemaField("age", NumericFilter(0, 120, 5))])
    >>> schema.encode({"name": ["Ada", "Alan"], "age": [36, 41]}, Key(bytes(32)))
    EncodedTable(2 records x 2048 bits, fingerprint dc9139f068dc)
    """

    fields: Sequence[SchemaField]

    def __post_init__(self) -> None:
        # Tuples, so that equal schemas compare equal and cannot change once their fingerprint is computed.
        object.__setattr__(self, "fields", _check_elements("fields", self.fields, SchemaField, "SchemaField(...)"))
        if not 1 <= len(self.fields) <= MAX_FIELDS:
            message = f"the schema has {len(self.fields)} fields; give 1 to {MAX_FIELDS}"
            raise SettingError(message, code="bad-field-count", limit=MAX_FIELDS)
        if self.n_bits > MAX_FILTER_BITS:
            message = f"the fields have {self.n_bits} bits together; use smaller filters, at most {MAX_FILTER_BITS}"
            raise SettingError(message, code="filter-too-large", limit=MAX_FILTER_BITS)
        positions = [isinstance(field.encoding, POSITIONS) for field in self.fields]
        if any(positions) and not all(positions):
            rule = "positions can only be beside other positions"
            message = f"{rule}; encode every field as a filter, or every field as a position"
            raise SettingError(message, code="mixed-schema")

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that a table must have."""
        names = [name for field in self.fields for name in (*field.columns, field.salt) if name is not None]
        return tuple(dict.fromkeys(names))

    @property
    def metric(self) -> str:
        """The default metric for the encoded records, used if the job sets none."""
        return "position" if self.positions else "hamming"

    @property
    def positions(self) -> bool:
        """Whether records are encoded as positions rather than filters."""
        return isinstance(self.fields[0].encoding, POSITIONS)

    @property
    def has_text(self) -> bool:
        """Whether text is among the fields."""
        return any(cell_type(field.encoding) == "text" for field in self.fields)

    @property
    def allows_gaps(self) -> bool:
        """Whether a record may lack some (but not all) of its fields; the filter of a missing field is empty.

        Schemas of numbers alone do not allow it: half of a place is not a place.
        """
        return self.has_text and len(self.fields) > 1

    @property
    def n_bits(self) -> int:
        """Bits per record."""
        return sum(field.encoding.bits for field in self.fields)

    def fingerprint(self, key: Key) -> str:
        """Return 64 hexadecimal digits that identify the schema and key without revealing them."""
        return self.subkey(key, "fingerprint").hex()

    def subkey(self, key: Key, purpose: str) -> bytes:
        """Return the key for one purpose of this schema, such as ``field 0``."""
        if not isinstance(key, Key):
            message = f"the key is a {type(key).__name__}; create one with Key.generate() or Key.read(path)"
            raise SettingError(message, code="bad-key")
        # Every subkey depends on the complete schema: filters of two projects cannot be joined, even with the same key.
        return key.derive(f"{purpose} of {self._description()}")

    def _present(self, column: IdentifierColumn) -> IdentifierColumn:
        """Return the column without missing values, if the schema allows them."""
        if not self.allows_gaps or (present := column.present()).all():
            return column
        return column.take(np.flatnonzero(present))

    def encode(
        self,
        records: Any,
        key: Key,
        table: str = "primary",
    ) -> EncodedTable:
        """Encode a table in a form that the coordinator may see.

        Parameters
        ----------
        records
            A dictionary of columns, or a pandas, polars or Arrow table.
        key
            The secret that the parties share.
        table
            Name of the table in error messages.
        """
        columns, filters = read_columns(records, self.columns, table), []
        for index, field in enumerate(self.fields):
            filters.append(self._encode_field(field, columns, self.subkey(key, f"field {index}")))
        if self.allows_gaps and filters:
            lacking = ~np.any([part.any(axis=1) for part in filters], axis=0)
            columns[self.fields[0].column].refuse(
                lacking, "has no identifier at all; drop the record", "no-identifiers"
            )
        return EncodedTable(bits=np.hstack(filters), n_bits=self.n_bits, fingerprint=self.fingerprint(key))

    def _encode_field(self, field: SchemaField, columns: Mapping[str, IdentifierColumn], subkey: bytes) -> Bits:
        """Return the filters of a field; they are empty where it is missing and the schema allows that."""
        column, salt = columns[field.column], columns.get(field.salt or "")
        present = column.present() if self.allows_gaps else None
        rows = None if present is None or present.all() else np.flatnonzero(present)
        if rows is not None:
            column, salt = column.take(rows), salt.take(rows) if salt else None
        if salt is not None and isinstance(field.encoding, SaltedEncoding):
            bits = field.encoding.encode_salted(column, salt, subkey)
        elif field.longitude is not None and isinstance(field.encoding, PlaceEncoding):
            bits = field.encoding.encode_place(column, columns[field.longitude], subkey)
        else:
            bits = field.encoding.encode(column, subkey)
        if rows is None or present is None:
            return bits
        complete = np.zeros((len(present), bits.shape[1]), dtype=np.uint8)
        complete[rows] = bits
        return complete

    def to_dict(self) -> dict[str, Any]:
        """Return the schema with every setting, in types that JSON and TOML support."""
        fields = [{"column": field.column, "encoding": element_to_dict(field.encoding)} for field in self.fields]
        for described, field in zip(fields, self.fields, strict=True):
            # TOML has no null.
            optional = {"salt": field.salt, "longitude": field.longitude}
            described |= {name: value for name, value in optional.items() if value is not None}
        return {
            "version": SCHEMA_VERSION,
            "fields": fields,
            "combine": CONCATENATE,
            "hardening": [],  # of earlier versions, whose fingerprints have it
        }

    @classmethod
    def from_dict(cls, described: object) -> Schema:
        """Return the schema described by :meth:`to_dict`; omitted settings get their defaults."""
        settings = _require(Mapping, described, "schema")
        _check_keys(settings, ("version", "fields", "combine", "hardening"), ("version", "fields"), "schema")
        if settings["version"] != SCHEMA_VERSION:
            message = f"schema version {settings['version']!r}, but this release reads version {SCHEMA_VERSION}"
            raise SettingError(message, code="schema-version")
        fields = []
        for number, entry in enumerate(_require(list | tuple, settings["fields"], "schema, fields"), 1):
            field, where = _require(Mapping, entry, f"field {number}"), f"field {number}"
            _check_keys(field, ("column", "encoding", "salt", "longitude"), ("column", "encoding"), where)
            encoding: FieldEncoding = element_from_dict(ENCODINGS, field["encoding"], f"{where}, encoding")
            fields.append(SchemaField(field["column"], encoding, field.get("salt"), field.get("longitude")))
        if settings.get("combine", CONCATENATE) != CONCATENATE:
            message = "combine: fields always lie side by side; remove this setting, and choose bits for each field"
            raise SettingError(message, code="removed-setting", where="combine")
        if settings.get("hardening"):
            message = "hardening: flipped bits cost more recall than they protect; remove it, or link by tokens"
            raise SettingError(message, code="removed-setting", where="hardening")
        return cls(fields)

    def _description(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))


def _check_elements(name: str, given: Any, kind: type, example: str) -> tuple[Any, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise SettingError(f"{name} is a {type(given).__name__}; give a list such as [{example}]", code="wrong-type")
    elements = tuple(given)
    for element in elements:
        if isinstance(element, type) or not isinstance(element, kind):
            raise SettingError(f"{name} has a {type(element).__name__}; use objects like {example}", code="wrong-type")
    return elements
