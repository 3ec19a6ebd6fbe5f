"""What one party says about itself: its data, its columns, its keys and its limits; nobody else ever sees the file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, Strict, ValidationInfo, model_validator

from fedsim.data.sql_source import Source, SqlTable
from fedsim.party.demands import Policy
from fedsim.party.job import PartyName, bindable
from fedsim.party.toml_file import Document, RuleError, Section, read_document
from fedsim.party.written import COLUMN_NAMES, LONGEST_NAME, ColumnName, Columns, FileName
from fedsim.protocol.parties import Party, Role

KindWord = Literal["number", "category", "date"]


def _columns_by_name(written: dict[str, Any]) -> dict[str, Any]:
    for name, column in written.items():
        inside = column.values() if isinstance(column, dict) else [column]
        if not all(isinstance(own, str) and 1 <= len(own) <= LONGEST_NAME for own in inside):
            raise RuleError("give the name of a column, or a table of such names for one secondary", name)
    return written


class Tls(Section):
    """Files of `fedsim certs`."""

    authority: FileName = Field(
        description="Certificate of the authority that signed all parties' certificates.", examples=["certs/ca.pem"]
    )
    certificate: FileName = Field(
        description="This party's certificate, good for its role and name alone.",
        examples=["certs/secondary-rentals.pem"],
    )
    key: FileName = Field(
        description="The certificate's private key, readable by its owner alone.",
        examples=["certs/secondary-rentals.key"],
    )


class Data(Section):
    """The party's table: a ``file``, or a ``table`` or ``query`` of the database at ``url``."""

    file: FileName | None = Field(
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
    password_file: FileName | None = Field(
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
    def source(self) -> Source:
        """Where the table is."""
        if self.file is not None:
            return self.file
        return SqlTable(self.url or "", self.table, self.query, self.password_file, self._folder)


class Features(Section):
    """What is learnt from; neither ``columns`` nor ``drop``: whatever is no identifier and no label."""

    columns: Columns | None = Field(
        default=None,
        title=COLUMN_NAMES,
        description="The columns that are learnt from; left out, all but identifiers, label and `drop`. A column that "
        "links may be named here, too, and is then learnt from as well.",
        examples=[["rooms", "rent"]],
    )
    drop: Columns = Field(
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


class Label(Section):
    """What is predicted."""

    column: ColumnName = Field(
        description="The column that is predicted; it never leaves the party and is no feature.", examples=["price"]
    )


class Linkage(Section):
    """The secret that makes filters comparable."""

    key: FileName = Field(
        description="File with the key of `fedsim key`, the same at primary and secondary; never at the coordinator.",
        examples=["linkage.key"],
    )


class Serving(Section):
    """What `fedsim serve` does while a secondary is away: refuse, or answer by the primary's own features alone."""

    when_partner_is_away: Literal["error", "solo"] = Field(
        default="error",
        description="Whether a prediction fails while a secondary is away, or comes from a second network that knows "
        "the primary's own features alone and is trained after the first.",
    )


class OwnNetwork(Section):
    """Where the party listens, if that is not the job's address."""

    listen: Annotated[str | None, Field(title="host and port such as 0.0.0.0:7412")] = Field(
        default=None,
        description="Where this party listens, if that is not the address the job has for it.",
        examples=["0.0.0.0:7412"],
    )

    @model_validator(mode="after")
    def _address(self) -> Self:
        if self.listen is not None:
            bindable(self.listen)
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


class PartyFile(Document):
    """One party's own settings; all its paths are relative to the folder of its file."""

    name: PartyName = Field(description="This party's name, as the job has it.", examples=["rentals"])
    role: Annotated[Role, Strict(False)] = Field(
        description="What the party does: the primary has the label, a secondary lets others learn from its records, "
        "the coordinator finds partners and sees no table.",
        examples=["secondary"],
    )
    folder: FileName = Field(
        description="Folder of runs, approvals, audit log and models of this party; made if it is not there.",
        examples=["rentals-run"],
    )
    tls: Tls | None = Field(
        default=None, description="Certificates from `fedsim certs`; without them parties meet on one machine only."
    )
    data: Data | None = Field(default=None, description="The party's table; a coordinator has none.")
    identifiers: Annotated[dict[str, Any], AfterValidator(_columns_by_name)] = Field(
        default_factory=dict,
        title="a table of agreed names and own columns",
        description="What own columns are called where that is not the agreed name. A primary may have a table of such "
        "names for one secondary, [identifiers.NAME].",
        examples=[{"lat": "latitude"}],
    )
    features: Features = Field(default=Features(), description="Which columns are learnt from, and what they mean.")
    label: Label | None = Field(default=None, description="What is predicted; the primary's alone.")
    linkage: Linkage | None = Field(default=None, description="The secret that makes filters comparable.")
    serving: Serving = Field(default=Serving(), description="How predictions are served; the primary's alone.")
    network: OwnNetwork = Field(default=OwnNetwork(), description="Where this party listens.")
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
    return read_document(PartyFile, path)
