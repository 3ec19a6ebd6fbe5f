"""What one party says about itself: its data, its columns, its keys and its limits; nobody else ever sees the file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, Strict, ValidationInfo, model_validator

from fedsim.errors import SettingError
from fedsim.party.job import MethodWord, PartyName, WireWord, bindable
from fedsim.party.toml_file import Document, RuleError, Section, read_document, real, whole
from fedsim.protocol.parties import Party, Role

KindWord = Literal["number", "category", "date"]
HardeningWord = Literal["shuffle", "xor-fold", "balance", "bit-flip"]
LONGEST_NAME = 500
_SECRET = re.compile(r"[0-9A-Fa-f]{64,}")


def _beside(written: Any, info: ValidationInfo) -> Any:
    """A path as the party file means it: relative to the folder where that file lies."""
    if not isinstance(written, str) or not written or "\0" in written:
        raise SettingError("this is no path; give the name of a file, relative to this one")
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


def _columns_by_name(written: dict[str, Any]) -> dict[str, Any]:
    for name, column in written.items():
        inside = column.values() if isinstance(column, dict) else [column]
        if not all(isinstance(own, str) and 1 <= len(own) <= LONGEST_NAME for own in inside):
            raise RuleError("give the name of a column, or a table of such names for one secondary", name)
    return written


FileName = Annotated[Path, BeforeValidator(_beside)]
ColumnName = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, description="the name of a column")]
Columns = Annotated[
    tuple[ColumnName, ...], Strict(False), AfterValidator(_each_once), Field(description="a list of column names")
]
Names = Annotated[tuple[PartyName, ...], Strict(False), Field(description="a list of names of parties")]
Hashes = Annotated[
    tuple[Annotated[str, Field(pattern="^[0-9a-f]{12,64}$")], ...],
    Strict(False),
    Field(description="a list of job hashes, each of 12 to 64 digits from 0 to 9 and a to f"),
]


class Tls(Section):
    """Files of `fedsim certs`."""

    authority: FileName
    certificate: FileName
    key: FileName


class Data(Section):
    """The party's table."""

    file: FileName
    separator: Annotated[str | None, Field(min_length=1, description="one character, or the word tab")] = None
    missing: Annotated[tuple[str, ...], Strict(False), Field(description='a list of words such as ["NA"]')] = ()


class Features(Section):
    """What is learnt from; neither ``columns`` nor ``drop``: whatever is no identifier and no label."""

    columns: Columns | None = Field(default=None, description="a list of column names")
    drop: Columns = ()
    kinds: dict[str, KindWord] = Field(default_factory=dict, description="a table of columns and kinds")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.columns is not None and self.drop:
            raise RuleError("both columns and drop are given; name the columns, or what to leave out", "drop")
        return self


class Label(Section):
    """What is predicted."""

    column: ColumnName


class Linkage(Section):
    """The secret that makes filters comparable."""

    key: FileName


class Serving(Section):
    """What `fedsim serve` does while a secondary is away: refuse, or answer by the primary's own features alone."""

    when_partner_is_away: Literal["error", "solo"] = "error"


class OwnNetwork(Section):
    """Where the party listens, if that is not the job's address."""

    listen: Annotated[str | None, Field(description="host and port such as 0.0.0.0:50052")] = None

    @model_validator(mode="after")
    def _address(self) -> Self:
        if self.listen is not None:
            bindable(self.listen)
        return self


class Policy(Section):
    """What the party demands of every job; what is left out it does not mind."""

    max_tau: Annotated[float | None, real(0, 1)] = None
    min_candidates: Annotated[int | None, whole(1, 1_000_000_000)] = None
    columns: Columns | None = Field(default=None, description="a list of column names")
    min_k: Annotated[int | None, whole(1, 10_000)] = None
    max_k: Annotated[int | None, whole(1, 10_000)] = None
    hardening: Annotated[tuple[HardeningWord, ...], Strict(False)] = ()
    methods: Annotated[tuple[MethodWord, ...] | None, Strict(False)] = None
    wire: Annotated[tuple[WireWord, ...] | None, Strict(False)] = None
    max_epochs: Annotated[int | None, whole(1, 100_000)] = None
    primary: Names | None = Field(default=None, description="a list of names of parties")
    coordinator: Names | None = Field(default=None, description="a list of names of parties")
    secondaries: Names | None = Field(default=None, description="a list of names of parties")
    approve: Hashes = ()

    @model_validator(mode="after")
    def _some_k(self) -> Self:
        if self.min_k is not None and self.max_k is not None and self.min_k > self.max_k:
            raise RuleError(f"min_k is {self.min_k} and max_k {self.max_k}; no k is both", "min_k")
        return self


# What a role must not have, with the reason, and what it must have.
_HOLDS_NOTHING = "the coordinator must not hold data, features, labels or keys; remove it"
_FORBIDDEN: dict[Role, dict[tuple[str, ...], str]] = {
    Role.COORDINATOR: {
        ("data",): _HOLDS_NOTHING,
        ("identifiers",): _HOLDS_NOTHING,
        ("features",): _HOLDS_NOTHING,
        ("label",): _HOLDS_NOTHING,
        ("linkage",): _HOLDS_NOTHING,
        ("serving",): "only the primary serves predictions; remove it",
        ("policy", "columns"): "a coordinator has no columns; remove it",
        ("policy", "min_candidates"): "a coordinator has no records; remove it",
        ("policy", "coordinator"): "this party is the coordinator itself; remove it",
    },
    Role.PRIMARY: {("policy", "primary"): "this party is the primary itself; remove it"},
    Role.SECONDARY: {
        ("label",): "only the primary has labels; remove it, or list the column under features",
        ("serving",): "only the primary serves predictions; remove it",
        ("network", "listen"): "a secondary only dials out; remove it",
    },
}
_REQUIRED: dict[Role, tuple[str, ...]] = {
    Role.COORDINATOR: (),
    Role.PRIMARY: ("data", "label", "linkage"),
    Role.SECONDARY: ("data", "linkage"),
}


class PartyFile(Document):
    """One party's own settings; all its paths are relative to the folder of its file."""

    name: PartyName
    role: Annotated[Role, Strict(False)]
    folder: FileName
    tls: Tls | None = None
    data: Data | None = None
    identifiers: Annotated[dict[str, Any], AfterValidator(_columns_by_name)] = Field(
        default_factory=dict, description="a table of agreed names and own columns"
    )
    features: Features = Features()
    label: Label | None = None
    linkage: Linkage | None = None
    serving: Serving = Serving()
    network: OwnNetwork = OwnNetwork()
    policy: Policy = Policy()

    @model_validator(mode="after")
    def _fits_the_role(self) -> Self:
        for place, reason in _FORBIDDEN[self.role].items():
            if self._has(place):
                raise RuleError(reason, *place)
        for section in _REQUIRED[self.role]:
            if not self._has((section,)):
                raise RuleError(f"a {self.role} needs this section; add it", section)
        if self.role is Role.SECONDARY:
            for name, column in self.identifiers.items():
                if isinstance(column, dict):
                    raise RuleError("a secondary is linked once; give the name of its own column", "identifiers", name)
        return self

    def _has(self, place: Iterable[str]) -> bool:
        section: Any = self
        for name in place:
            if name not in section.model_fields_set:
                return False
            section = getattr(section, name)
        return True

    @property
    def party(self) -> Party:
        """Who this is."""
        return Party(self.role, self.name)


def read_party_file(path: Path) -> PartyFile:
    """The party file at ``path``."""
    return read_document(PartyFile, path)
