"""One field of a schema: which column, how it is encoded, what salts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from fedsim.errors import SettingError
from fedsim.linkage.encoding.columns import Column
from fedsim.types import Bits, Integers


@runtime_checkable
class Described(Protocol):
    """A part of a schema, known in text by its kind."""

    KIND: ClassVar[str]


class Encoding(Protocol):
    """Makes one packed filter of ``bits`` bits of every value of a column."""

    KIND: ClassVar[str]

    @property
    def bits(self) -> int: ...

    def encode(self, column: Column, subkey: bytes) -> Bits: ...


@runtime_checkable
class Salting(Protocol):
    """An encoding whose hashes can depend on a second column."""

    def encode_salted(self, column: Column, salt: Column, subkey: bytes) -> Bits: ...


@runtime_checkable
class Ranked(Protocol):
    """An encoding whose filters are runs of ones, known by two integers each."""

    def ranks(self, column: Column, subkey: bytes) -> Integers: ...


@dataclass(frozen=True)
class Field:
    """A column and its encoding; ``salt`` names a second column whose value enters every hash of a text.

    Salt with something stable that both parties know without error, a year of birth: where it differs, the texts no
    longer match at all; where it is equal, q-gram statistics of the whole table no longer help an attacker.
    """

    column: str
    encoding: Encoding
    salt: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("column", self.column), ("salt", self.salt)):
            if value is not None and not (isinstance(value, str) and value):
                raise SettingError(f"{name}={value!r} is no name of a column; give its name as text")
        if isinstance(self.encoding, type) or not isinstance(self.encoding, Described):
            raise SettingError(
                f"the encoding of field {self.column!r} is a {type(self.encoding).__name__}; give one such as "
                "StringFilter()"
            )
        if self.salt is not None and not isinstance(self.encoding, Salting):
            raise SettingError(f"field {self.column!r} has a salt, but only text can be salted; leave the salt out")
