"""The party file: one party's data, columns, keys, network and policy; no other party sees it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, Strict, ValidationInfo, model_validator

from fedsim.config.job import MethodWord, PartyName, WireWord, check_listen_address
from fedsim.config.toml_file import ConfigFile, ConfigSection, RuleError, read_config_file, real_number, whole_number
from fedsim.data.sql import SqlTable, TableSource, is_database_url
from fedsim.errors import SettingError
from fedsim.protocol.messages import Party, Role

# What people write in a party file: paths, names of columns, names of parties, hashes of jobs


MAX_COLUMN_NAME_LENGTH = 500
_KEY_DIGITS = re.compile(r"[0-9A-Fa-f]{64,}")


def _resolve_path(written: Any, info: ValidationInfo) -> Any:
    """A path as the party file means it: relative to the folder where that file lies."""
    if not isinstance(written, str) or not written or "\0" in written:
        raise SettingError("this is no path; give the name of a file, relative to this one")
    if is_database_url(written):
        raise SettingError("this is a URL; a database is named under data.url, with table or query beside it")
    if _KEY_DIGITS.fullmatch(written):
        raise SettingError("this looks like a key itself; write it to a file readable by you alone and name that file")
    return Path((info.context or {}).get("folder", ""), written)


def _check_unique(words: tuple[str, ...]) -> tuple[str, ...]:
    seen: set[str] = set()
    for word in words:
        if word in seen:
            raise SettingError(f"'{word[:60]}' stands there twice; name it once")
        seen.add(word)
    return words


COLUMN_NAMES_TITLE = "a list of column names"
PARTY_NAMES_TITLE = "a list of names of parties"
ConfigPath = Annotated[Path, BeforeValidator(_resolve_path), Field(title="a path, relative to this file")]
ColumnName = Annotated[str, Field(min_length=1, max_length=MAX_COLUMN_NAME_LENGTH, title="the name of a column")]
ColumnNameList = Annotated[
    tuple[ColumnName, ...], Strict(False), AfterValidator(_check_unique), Field(title=COLUMN_NAMES_TITLE)
]
PartyNameList = Annotated[tuple[PartyName, ...], Strict(False), Field(title=PARTY_NAMES_TITLE)]
JobHashList = Annotated[
    tuple[Annotated[str, Field(pattern="^[0-9a-f]{12,64}$")], ...],
    Strict(False),
    Field(title="a list of job hashes, each of 12 to 64 digits from 0 to 9 and a to f"),
]


# The section of a party file in which its owner says what a job must keep to


HardeningWord = Literal["shuffle", "xor-fold", "balance", "bit-flip"]


class CutRequirement(ConfigSection):
    """How well rows that cross the cut must be protected."""

    max_clip: Annotated[float | None, real_number(0, 1e6)] = Field(
        default=None, description="The longest a row may be; left out, any length will do.", examples=[1.0]
    )
    min_noise: Annotated[float, real_number(0, 1e6)] = Field(
        description="The least noise, as a multiple of the clip; a job without any is refused.", examples=[0.5]
    )


class AuditRequirement(ConfigSection):
    """An audit of exactly this job that the owner has run on the own table, with nothing in it above a limit."""

    limit: Annotated[float, Field(ge=0, lt=1, title="a number from 0 to below 1")] = Field(
        description="The most that any attack by another party may gain over blind guessing about this one: 0 is "
        "nothing, 1 certainty. The report lies in the party's folder under audits, by the hash of the job.",
        examples=[0.3],
    )


class Policy(ConfigSection):
    """What the party demands of every job; what is left out it does not mind.

    ``max_new_records`` is the coordinator's: how many records it links per list after training, over all predictions.
    Noise does not protect against endless questions: near-copies of one record, each with noise of its own, average
    it away.
    """

    max_tau: Annotated[float | None, real_number(0, 1)] = Field(
        default=None, description="The largest tau this party takes; jobs without tau are refused.", examples=[0.05]
    )
    min_candidates: Annotated[int | None, whole_number(1, 1_000_000_000)] = Field(
        default=None,
        description="The fewest records of its own with which the party takes part; among few, each is easier to find.",
        examples=[1000],
    )
    columns: ColumnNameList | None = Field(
        default=None,
        title=COLUMN_NAMES_TITLE,
        description="The only columns of the table that any job may use, for linking or learning.",
        examples=[["lat", "lon", "rent"]],
    )
    min_k: Annotated[int | None, whole_number(1, 10_000)] = Field(
        default=None, description="The smallest k this party takes: long lists tell less of each record.", examples=[10]
    )
    max_k: Annotated[int | None, whole_number(1, 10_000)] = Field(
        default=None, description="The largest k this party takes: long lists show more records.", examples=[50]
    )
    hardening: Annotated[tuple[HardeningWord, ...], Strict(False)] = Field(
        default=(), description="Steps of hardening that the filters must go through.", examples=[["balance"]]
    )
    max_epsilon_per_km: Annotated[float | None, real_number(0, 1e6)] = Field(
        default=None,
        description="Places must be blurred with at most this epsilon per kilometre: they move by 2000 / epsilon "
        "metres on average. Jobs that do not blur are refused.",
        examples=[10],
    )
    min_degree: Annotated[int | None, whole_number(1, 1_000_000)] = Field(
        default=None, description="Partners that fewer records would name must be named by none.", examples=[5]
    )
    min_dummies: Annotated[float | None, Field(gt=0, le=0.9, title="a share above 0 and up to 0.9")] = Field(
        default=None, description="The least share of links that point to a random candidate instead.", examples=[0.2]
    )
    hide_rows: bool = Field(
        default=False, description="Whether a job must keep the primary from seeing which partners repeat."
    )
    min_feature_noise: Annotated[float | None, real_number(0, 1e6)] = Field(
        default=None,
        description="The least noise on the features of secondaries, in deviations of each column.",
        examples=[2.0],
    )
    activations: CutRequirement | None = Field(
        default=None, description="How well what secondaries send must be protected; left out, it need not be."
    )
    gradients: CutRequirement | None = Field(
        default=None, description="How well what the primary sends back must be protected; left out, it need not be."
    )
    audit: AuditRequirement | None = Field(
        default=None, description="The audit that must be on file before this party takes part; left out, none."
    )
    methods: Annotated[tuple[MethodWord, ...] | None, Strict(False)] = Field(
        default=None, description="The methods this party takes part in.", examples=[["fedsim"]]
    )
    wire: Annotated[tuple[WireWord, ...] | None, Strict(False)] = Field(
        default=None, description="The forms of numbers on the wire this party takes.", examples=[["float32"]]
    )
    max_epochs: Annotated[int | None, whole_number(1, 100_000)] = Field(
        default=None,
        description="The most epochs this party trains; a job that leaves their number to the preset is refused.",
        examples=[100],
    )
    max_new_records: Annotated[int, whole_number(0, 1_000_000_000)] = Field(
        default=100_000,
        description="The coordinator's alone: records it links per list after training, over all predictions. Endless "
        "near-copies of one record would average the noise away.",
    )
    max_studies: Annotated[int, whole_number(0, 1_000_000)] = Field(
        default=0,
        description="A secondary's alone: trainings beside the job's own in which it takes part, so that the primary "
        "can compare (`fedsim compare`). Each shows the primary more of the features, under the job's protections.",
        examples=[50],
    )
    primary: PartyNameList | None = Field(
        default=None, title=PARTY_NAMES_TITLE, description="The primaries this party works with.", examples=[["city"]]
    )
    coordinator: PartyNameList | None = Field(
        default=None,
        title=PARTY_NAMES_TITLE,
        description="The coordinators this party works with.",
        examples=[["notary"]],
    )
    secondaries: PartyNameList | None = Field(
        default=None,
        title=PARTY_NAMES_TITLE,
        description="The other secondaries this party works with.",
        examples=[["schools"]],
    )
    approve: JobHashList = Field(
        default=(),
        description="Jobs that need no `fedsim approve` any more, by the first 12 or more digits of their hash.",
        examples=[["0b1c2d3e4f5a"]],
    )

    @model_validator(mode="after")
    def _some_k(self) -> Self:
        if self.min_k is not None and self.max_k is not None and self.min_k > self.max_k:
            raise RuleError(f"min_k is {self.min_k} and max_k {self.max_k}; no k is both", "min_k")
        return self


# What one party says about itself: its data, its columns, its keys and its limits; nobody else ever sees the file


KindWord = Literal["number", "category", "date"]


def _check_identifier_columns(written: dict[str, Any]) -> dict[str, Any]:
    for name, column in written.items():
        inside = column.values() if isinstance(column, dict) else [column]
        if not all(isinstance(own, str) and 1 <= len(own) <= MAX_COLUMN_NAME_LENGTH for own in inside):
            raise RuleError("give the name of a column, or a table of such names for one secondary", name)
    return written


class TlsSettings(ConfigSection):
    """Files of `fedsim certs`."""

    authority: ConfigPath = Field(
        description="Certificate of the authority that signed all parties' certificates.", examples=["certs/ca.pem"]
    )
    certificate: ConfigPath = Field(
        description="This party's certificate, good for its role and name alone.",
        examples=["certs/secondary-rentals.pem"],
    )
    key: ConfigPath = Field(
        description="The certificate's private key, readable by its owner alone.",
        examples=["certs/secondary-rentals.key"],
    )


class DataSettings(ConfigSection):
    """The party's table: a ``file``, or a ``table`` or ``query`` of the database at ``url``."""

    file: ConfigPath | None = Field(
        default=None,
        title="a path, relative to this file",
        description="The table: .csv, .csv.gz, .tsv, .tsv.gz or .parquet.",
        examples=["rentals.csv"],
    )
    url: str | None = Field(
        default=None,
        repr=False,
        title="a URL such as sqlite:///flats.db or postgresql://user@host/database",
        description="A database instead of a file; it is only read from. For PostgreSQL the password comes from the "
        "URL, from password_file, from PGPASSWORD or from ~/.pgpass.",
        examples=["postgresql://reader@db.example.org/city"],
    )
    table: ColumnName | None = Field(
        default=None,
        title="the name of a table",
        description="The table of the database, with its schema and a dot before where it needs one.",
        examples=["flats"],
    )
    query: str | None = Field(
        default=None,
        repr=False,
        title="one SQL statement that returns a table",
        description="Instead of `table`: what to read, in SQL. It should order its rows, so that every run sees them "
        "alike.",
        examples=["select lat, lon, price from flats order by id"],
    )
    password_file: ConfigPath | None = Field(
        default=None,
        title="a path, relative to this file",
        description="File whose first line is the password of the database, readable by its owner alone.",
        examples=["password"],
    )
    separator: Annotated[str | None, Field(min_length=1, title="one character, or the word tab")] = Field(
        default=None,
        description="What stands between the cells of a text table; left out, a comma in .csv and a tab in .tsv.",
        examples=[";"],
    )
    missing: Annotated[tuple[str, ...], Strict(False), Field(title='a list of words such as ["NA"]')] = Field(
        default=(),
        description="Words that stand in feature cells where nothing is known; empty cells need no word.",
        examples=[["NA"]],
    )
    _folder: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _one_source(self, info: ValidationInfo) -> Self:
        self._folder = Path((info.context or {}).get("folder", ""))
        if (self.file is None) == (self.url is None):
            raise RuleError("give the name of a file, or the url of a database, and not both", "file")
        of_database = ("table", "query", "password_file") if self.file else ("separator",)
        for name in of_database:
            if getattr(self, name) is not None:
                raise RuleError(f"{name} belongs to a {'database' if self.file else 'file'}; remove it", name)
        _ = self.source
        return self

    @property
    def source(self) -> TableSource:
        """Where the table is."""
        if self.file is not None:
            return self.file
        return SqlTable(self.url or "", self.table, self.query, self.password_file, self._folder)


class FeatureSettings(ConfigSection):
    """What is learnt from; neither ``columns`` nor ``drop``: whatever is no identifier and no label."""

    columns: ColumnNameList | None = Field(
        default=None,
        title=COLUMN_NAMES_TITLE,
        description="The columns that are learnt from; left out, all but identifiers, label and `drop`. A column that "
        "links may be named here, too, and is then learnt from as well.",
        examples=[["rooms", "rent"]],
    )
    drop: ColumnNameList = Field(
        default=(), description="Columns to leave out, such as row numbers; not beside `columns`.", examples=[["id"]]
    )
    kinds: dict[str, KindWord] = Field(
        default_factory=dict,
        title="a table of columns and kinds",
        description="What a column means where its type does not say it: number, category or date. Text is a category "
        "otherwise, or a number where all of it is.",
        examples=[{"sold": "date"}],
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.columns is not None and self.drop:
            raise RuleError("both columns and drop are given; name the columns, or what to leave out", "drop")
        return self


class LabelSettings(ConfigSection):
    """What is predicted."""

    column: ColumnName = Field(
        description="The column that is predicted; it never leaves the party and is no feature.", examples=["price"]
    )


class LinkageSettings(ConfigSection):
    """The secret that makes filters comparable."""

    key: ConfigPath = Field(
        description="File with the key of `fedsim key`, the same at primary and secondary; never at the coordinator.",
        examples=["linkage.key"],
    )


class ServingSettings(ConfigSection):
    """What `fedsim serve` does while a secondary is away: refuse, or answer by the primary's own features alone."""

    when_partner_is_away: Literal["error", "solo"] = Field(
        default="error",
        description="Whether a prediction fails while a secondary is away, or comes from a second network that knows "
        "the primary's own features alone and is trained after the first.",
    )


class ListenSettings(ConfigSection):
    """Where the party listens, if that is not the job's address."""

    listen: Annotated[str | None, Field(title="host and port such as 0.0.0.0:7412")] = Field(
        default=None,
        description="Where this party listens, if that is not the address the job has for it.",
        examples=["0.0.0.0:7412"],
    )

    @model_validator(mode="after")
    def _address(self) -> Self:
        if self.listen is not None:
            check_listen_address(self.listen)
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
        ("policy", "audit"): "a coordinator has no table to audit; remove it",
        ("policy", "max_studies"): "only a secondary is asked for studies; remove it",
    },
    Role.PRIMARY: {
        ("policy", "primary"): "this party is the primary itself; remove it",
        ("policy", "max_studies"): "only a secondary is asked for studies; remove it",
        ("policy", "max_new_records"): "only a coordinator links new records; remove it",
    },
    Role.SECONDARY: {
        ("label",): "only the primary has labels; remove it, or list the column under features",
        ("serving",): "only the primary serves predictions; remove it",
        ("network", "listen"): "a secondary only dials out; remove it",
        ("policy", "max_new_records"): "only a coordinator links new records; remove it",
    },
}
_REQUIRED: dict[Role, tuple[str, ...]] = {
    Role.COORDINATOR: (),
    Role.PRIMARY: ("data", "label", "linkage"),
    Role.SECONDARY: ("data", "linkage"),
}


class PartyFile(ConfigFile):
    """One party's own settings; all its paths are relative to the folder of its file."""

    name: PartyName = Field(description="This party's name, as the job has it.", examples=["rentals"])
    role: Annotated[Role, Strict(False)] = Field(
        description="What the party does: the primary has the label, a secondary lets others learn from its records, "
        "the coordinator finds partners and sees no table.",
        examples=["secondary"],
    )
    folder: ConfigPath = Field(
        description="Folder of runs, approvals, audit log and models of this party; made if it is not there.",
        examples=["rentals-run"],
    )
    tls: TlsSettings | None = Field(
        default=None, description="Certificates from `fedsim certs`; without them parties meet on one machine only."
    )
    data: DataSettings | None = Field(default=None, description="The party's table; a coordinator has none.")
    identifiers: Annotated[dict[str, Any], AfterValidator(_check_identifier_columns)] = Field(
        default_factory=dict,
        title="a table of agreed names and own columns",
        description="What own columns are called where that is not the agreed name. A primary may have a table of such "
        "names for one secondary, [identifiers.NAME].",
        examples=[{"lat": "latitude"}],
    )
    features: FeatureSettings = Field(
        default=FeatureSettings(), description="Which columns are learnt from, and what they mean."
    )
    label: LabelSettings | None = Field(default=None, description="What is predicted; the primary's alone.")
    linkage: LinkageSettings | None = Field(default=None, description="The secret that makes filters comparable.")
    serving: ServingSettings = Field(
        default=ServingSettings(), description="How predictions are served; the primary's alone."
    )
    network: ListenSettings = Field(default=ListenSettings(), description="Where this party listens.")
    policy: Policy = Field(
        default=Policy(), description="What the party demands of every job; what is left out it does not mind."
    )

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
    return read_config_file(PartyFile, path)
