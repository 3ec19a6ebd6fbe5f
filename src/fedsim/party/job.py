"""What all parties agree on: one file, the same everywhere, known by its hash."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, PlainValidator, model_validator

from fedsim.errors import SettingError
from fedsim.linkage.encoding.schema import Schema
from fedsim.party.toml_file import Document, RuleError, Section, document_from, read_document, real, whole
from fedsim.protocol.parties import NAME, Party, Role

MethodWord = Literal["fedsim", "avgsim", "featuresim", "top1sim"]
WireWord = Literal["float32", "float16", "bfloat16"]
# Methods of experiments, and why real parties do not run them.
NO_JOB = {
    "exact": "it needs equal identifiers in the clear and exists in simulations only",
    "combine": "it puts all raw tables in one place and exists in simulations only",
    "solo": "it needs no partner; the primary trains it alone",
}
_HOST = r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
_ADDRESS = re.compile(rf"({_HOST}):([0-9]{{1,5}})")


def _usable(word: Any) -> Any:
    if isinstance(word, str) and word in NO_JOB:
        raise SettingError(f"the method '{word}' is none for a job: {NO_JOB[word]}; choose fedsim, avgsim or another")
    return word


def _address(text: str) -> str:
    port = bindable(text).rpartition(":")[2]
    if int(port) == 0:
        raise SettingError(f"'{text}' has port 0, where nobody can be reached; give a port from 1 to 65535")
    return text


def bindable(text: str) -> str:
    """The address, if one could listen there; port 0 stands for any free one.

    >>> bindable("[::1]:50051")
    '[::1]:50051'
    """
    found = _ADDRESS.fullmatch(text)
    if not found or int(found.group(3)) > 65535:
        raise SettingError(f"'{text[:60]}' is no address; give host and port such as 127.0.0.1:50051")
    return text


def _schema(described: Any) -> Schema:
    return described if isinstance(described, Schema) else Schema.from_dict(_without_dates(described))


def _without_dates(value: Any) -> Any:
    """TOML has dates of its own, the schema wants them as text."""
    if isinstance(value, dict):
        return {key: _without_dates(inside) for key, inside in value.items()}
    if isinstance(value, list):
        return [_without_dates(inside) for inside in value]
    return value.isoformat() if type(value) is date else value


NAME_WORDS = "up to 40 small letters, digits and '-', as in a host name"
PartyName = Annotated[str, Field(pattern=f"^{NAME.pattern}$", description=NAME_WORDS)]
Address = Annotated[str, AfterValidator(_address), Field(description="host and port such as 127.0.0.1:50051")]
MethodName = Annotated[MethodWord, BeforeValidator(_usable)]
AgreedSchema = Annotated[Schema, PlainValidator(_schema), PlainSerializer(Schema.to_dict)]


class Reachable(Section):
    """A party that others dial."""

    name: PartyName
    address: Address


class Task(Section):
    """What is learnt, and how records are split; ``group`` keeps equal identifiers on one side."""

    kind: Literal["regression", "classification"]
    split: Literal["random", "group"] = "random"


class Training(Section):
    """How the network is trained; what is left out is as the preset has it."""

    preset: Literal["modern", "paper"] = "modern"
    method: MethodName = "fedsim"
    epochs: Annotated[int | None, whole(1, 100_000)] = None
    batch_size: Annotated[int | None, whole(1, 1_000_000)] = None
    learning_rate: Annotated[float | None, real(0, 100)] = None
    patience: Annotated[int | None, whole(1, 100_000)] = None
    threads: Annotated[int, whole(1, 1024)] = 1
    checkpoint_steps: Annotated[int, whole(1, 1_000_000_000)] = 200
    wire: WireWord = "float32"


class Network(Section):
    """How long a party waits for a missing peer."""

    wait_seconds: Annotated[int, whole(1, 604_800)] = 600


class SecondaryTerms(Section):
    """How one secondary is linked with the primary; neither ``tau`` nor ``sigma``: no noise."""

    k: Annotated[int, whole(1, 10_000)]
    metric: Literal["hamming", "dice"] = "hamming"
    tau: Annotated[float | None, real(0, 1)] = None
    sigma: Annotated[float | None, real(0, 1e6)] = None
    encoding: AgreedSchema = Field(alias="schema", description="a schema with version and fields")

    @model_validator(mode="after")
    def _one_noise(self) -> Self:
        if self.tau is not None and self.sigma is not None:
            raise RuleError("both tau and sigma are given; each alone says how much noise there is, keep one", "sigma")
        if self.tau is not None and self.metric != "hamming":
            raise RuleError(
                f"tau bounds attacks on hamming distances only, the metric is {self.metric}; use sigma or hamming",
                "tau",
            )
        return self


def _in_order(secondaries: dict[str, SecondaryTerms]) -> dict[str, SecondaryTerms]:
    """By name: the hash does not see the order of the file, so no party may."""
    for name in secondaries:
        if not NAME.fullmatch(name):
            raise RuleError(f"a secondary's name is {NAME_WORDS}; rename it", name)
    return dict(sorted(secondaries.items()))


class Job(Document):
    """A job as its file says it, defaults spelt out; the secondaries stand in the order of their names."""

    name: PartyName
    seed: Annotated[int, whole(0, 2**63 - 1)] = 0
    coordinator: Reachable
    primary: Reachable
    task: Task
    training: Training = Training()
    network: Network = Network()
    secondaries: Annotated[
        dict[str, SecondaryTerms],
        Field(min_length=1, description="a section [secondaries.NAME] for each"),
        AfterValidator(_in_order),
    ]

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [party.name for party in self.parties]
        for name in names:
            if names.count(name) > 1:
                raise RuleError(f"two parties are called '{name}'; give every party a name of its own", "secondaries")
        if self.coordinator.address == self.primary.address:
            raise RuleError("coordinator and primary have the same address; give each its own port", "primary")
        return self

    @classmethod
    def from_dict(cls, described: Mapping[str, Any]) -> Job:
        """The job that :meth:`described` described."""
        return document_from(cls, described, "the job")

    def described(self) -> dict[str, Any]:
        """Every setting in types that JSON has."""
        return self.model_dump(mode="json", by_alias=True)

    @property
    def hash(self) -> str:
        """64 hexadecimal digits that stand for every setting, however the file is laid out."""
        text = json.dumps(self.described(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def short_hash(self) -> str:
        """The first twelve digits, for names of files and for people."""
        return self.hash[:12]

    @property
    def parties(self) -> list[Party]:
        """All who take part: coordinator, primary, then the secondaries by name."""
        first = [Party(Role.COORDINATOR, self.coordinator.name), Party(Role.PRIMARY, self.primary.name)]
        return first + [Party(Role.SECONDARY, name) for name in self.secondaries]

    def address_of(self, party: Party) -> str:
        """Where the others reach a party."""
        known = {Role.COORDINATOR: self.coordinator, Role.PRIMARY: self.primary}
        if party not in self.parties or party.role not in known:
            raise SettingError(
                f"job '{self.name}' has no address for {party}; only coordinator and primary are dialled"
            )
        return known[party.role].address


def read_job(path: Path) -> Job:
    """The job in a file."""
    return read_document(Job, path)
