"""The party file: one party's data, columns, keys, network and policy; no other party sees it."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    Strict,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from fedsim.config.job import Job, PartyName
from fedsim.config.toml_file import ConfigFile, ConfigSection, OneOf, RuleError, real_number, setting, whole_number
from fedsim.data.column_names import have_same_name, missing_column_message, missing_identifier_message
from fedsim.data.sql import SqlTable, TableSource
from fedsim.errors import FileError, InputError, SettingError, nearest_word, replace_unprintable
from fedsim.protocol.addresses import Proxy, RelayAddress, split_address
from fedsim.protocol.certificates import certificate_pem, read_certificates
from fedsim.protocol.messages import Party, Role
from fedsim.protocol.tls import Credentials, read_credentials
from fedsim.registry import ENGINES, SPLITS
from fedsim.storage.files import SecretReference, SecretSource, check_private, read_secret
from fedsim.types import CELL_FORMATS

if TYPE_CHECKING:
    import polars as pl

PROXY_LOGIN_VARIABLE = "FEDSIM_PROXY_LOGIN"
# Epochs whose steps a secondary repeats with different numbers: a training resumed on another machine has such.
MAX_REPEATED_EPOCHS = 3
MAX_COLUMN_NAME_LENGTH = 500
COLUMN_NAMES_TITLE = "a list of column names"
PARTY_NAMES_TITLE = "a list of party names"
URL_TITLE = "a URL such as sqlite:///flats.db or postgresql://user@host/database"
QUERY_TITLE = "one SQL statement that returns a table"
PROXY_TITLE = "http://host:port or socks5://host:port, without a user"
ENGINE_TITLE = "local, ray, ray:auto or ray:HOST:PORT"
TRACKING_TITLE = "tensorboard or tensorboard:FOLDER"
EXAMPLE_QUERY = "select lat, lon, price from flats order by id"
KEY_TITLE = "a path, relative to this file, env:NAME or vault:PATH#FIELD"
_ENGINE_PATTERN = "|".join(f"^{name}{'(:.+)?' if ENGINES.detail(name, 'address') else ''}$" for name in ENGINES)
_HEX_KEY = re.compile(r"[0-9A-Fa-f]{64,}")


def _resolve_path(value: Any, info: ValidationInfo) -> Any:
    """Resolve a path relative to the folder of the party file."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise SettingError("not a valid path; give the name of a file, relative to this one", code="invalid-path")
    if "://" in value:
        raise SettingError("this is a URL; use data.url for a database, with table or query", code="url-as-path")
    if _HEX_KEY.fullmatch(value):
        message = "this looks like a key; write the key to a file that only you can read, and give its name"
        raise SettingError(message, code="key-as-path")
    return Path((info.context or {}).get("folder", ""), value)


def _to_role(value: Any) -> Any:
    return Role(value) if value in tuple(Role) else value


def _resolve_secret(value: Any, info: ValidationInfo) -> Any:
    """Return a reference to an environment variable or a key server, or else the path of a file."""
    reference = SecretReference.parse(value) if isinstance(value, str) else None
    if reference is None or _HEX_KEY.fullmatch(reference.variable):
        return _resolve_path(reference.variable if reference else value, info)
    return reference


def _resolve_tracking(value: str, info: ValidationInfo) -> str:
    """Resolve the folder of ``tensorboard:FOLDER`` relative to the folder of the party file."""
    kind, mark, place = value.partition(":")
    if kind == "tensorboard" and place:
        return f"{kind}{mark}{Path((info.context or {}).get('folder', ''), place)}"
    return value


def _check_unique(names: tuple[str, ...]) -> tuple[str, ...]:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise SettingError(f"'{repeated[0][:60]}' is listed twice; list it once", code="duplicate-name")
    return names


ConfigPath = Annotated[Path, BeforeValidator(_resolve_path), Field(title="a path, relative to this file")]
ConfigSecret = Annotated[
    SecretSource,
    BeforeValidator(_resolve_secret),
    WithJsonSchema({"type": "string", "format": "path"}),
    Field(title=KEY_TITLE),
]
ColumnName = Annotated[str, Field(min_length=1, max_length=MAX_COLUMN_NAME_LENGTH, title="the name of a column")]
ColumnNameList = Annotated[
    tuple[ColumnName, ...], Strict(False), AfterValidator(_check_unique), Field(title=COLUMN_NAMES_TITLE)
]
PartyNameList = Annotated[tuple[PartyName, ...], Strict(False), Field(title=PARTY_NAMES_TITLE)]
JobHashList = Annotated[
    tuple[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], ...],
    Strict(False),
    Field(title="a list of job hashes, each of 64 hexadecimal digits"),
]


class AuditRequirement(ConfigSection):
    """Required privacy audit of exactly this job on the party's own table."""

    limit: Annotated[float, Field(ge=0, lt=1, title="a number from 0 to below 1")] = setting(example=0.3)
    """Largest accepted advantage over guessing of any attack on this party in the audit: 0 means none, 1 means
    certainty. The audit report is stored in the party's folder, in audits/HASH.json."""


class Policy(ConfigSection):
    """Conditions that every job must meet; a condition that is not set accepts everything."""

    max_tau: Annotated[float | None, real_number(0, 1)] = setting(None, example=0.05)
    """Largest accepted `tau`; jobs without `tau` are refused. Theorem 2 assumes normally distributed similarities: see
    the setting of the job."""
    min_sigma: Annotated[float | None, real_number(0, 1e6)] = setting(None, example=0.2)
    """Smallest accepted `sigma`; jobs with neither `sigma` nor `tau` are refused."""
    min_candidates: Annotated[int | None, whole_number(1, 1_000_000_000)] = setting(None, example=1000)
    """Smallest number of its own records with which the party takes part: with few records, each is easier to find."""
    columns: ColumnNameList | None = setting(None, example=["lat", "lon", "rent"], title=COLUMN_NAMES_TITLE)
    """The columns of the table that jobs may use as identifier, feature or label. Default: all."""
    max_k: Annotated[int | None, whole_number(1, 10_000)] = setting(None, example=50)
    """Largest accepted `k`: longer lists reveal more records."""
    max_epsilon_per_km: Annotated[float | None, real_number(0, 1e6)] = setting(None, example=10)
    """Largest accepted `blur.epsilon_per_km`; the average displacement is 2000 / epsilon_per_km metres. Jobs without
    blur are refused."""
    min_feature_noise: Annotated[float | None, real_number(0, 1e6)] = setting(None, example=2.0)
    """Smallest accepted noise on the features of secondaries, in standard deviations of each column."""
    sealed_labels: bool = False
    """Require sealed labels (`protection.gradients = "none"`)."""
    audit: AuditRequirement | None = None
    """Privacy audit required before this party takes part. Default: none."""
    max_retention_days: Annotated[int | None, whole_number(1, 36_500)] = setting(None, example=30)
    """Largest accepted `retention_days` of jobs with sealed labels. Default: no limit."""
    max_new_records: Annotated[int, whole_number(0, 1_000_000_000)] = 10_000
    """Coordinator and secondary: number of different records per list that they link, or answer for, after training,
    over all predictions of a job: noise protects against a limited number of requests."""
    max_new_links: Annotated[int, whole_number(1, 1_000_000_000)] = 100
    """Coordinator only: number of new records that it links to one candidate, over all predictions of a job; twice as
    many as in training are always allowed. Without this limit, the noise could be averaged out by predicting
    near-copies of a record."""
    max_studies: Annotated[int, whole_number(0, 1_000_000)] = setting(0, example=50)
    """Secondary only: number of additional training runs in which it takes part for `fedsim compare`, per primary and
    over all jobs. Each run shows the primary more about the features, under the same protection as the job."""
    max_jobs: Annotated[int, whole_number(1, 1_000_000)] = 100
    """Secondary only: number of jobs in which it takes part with one primary. Every job draws new noise on
    similarities, so n jobs reveal as much as one with noise divided by sqrt(n)."""
    max_total_epochs: Annotated[int, whole_number(1, 1_000_000_000)] = 100_000
    """Secondary only: number of epochs that one primary may train with it, over all jobs and studies."""
    max_records: Annotated[int | None, whole_number(1, 1_000_000_000)] = setting(None, example=5000)
    """Secondary only: number of its records that may be linked to records of one primary, over all jobs and
    predictions. Default: all."""
    max_record_uses: Annotated[int | None, whole_number(1, 1_000_000_000)] = setting(None, example=100)
    """Secondary only: number of new records of one primary to which predictions may link any one of its records, over
    all jobs. A record that many others are linked to can be located from all of them together. Default: no limit."""
    max_tokens: Annotated[int | None, whole_number(1, 10**12)] = setting(None, example=500_000)
    """Secondary only: number of tokens that it evaluates for one primary, over all jobs without a coordinator and over
    all predictions. Default: the number that the job names."""
    min_cell_metres: Annotated[float | None, real_number(0, 1e6)] = setting(None, example=100)
    """Secondary only: smallest accepted cell (`metres`) of places in the tokens of a job without a coordinator: whoever
    reaches a row learns its finest cell."""
    min_list_rows: Annotated[int | None, whole_number(1, 1_000_000)] = setting(None, example=2)
    """Secondary only: number of rows below which a token is left out of its encrypted table, so that nobody reaches a
    row by what it alone has. Links become worse. Default: 1. A cell of `averages` has `m` rows anyway."""
    min_m: Annotated[int | None, whole_number(1, 1_000_000)] = setting(None, example=10)
    """Secondary only: smallest accepted `m` of a job without a coordinator: the least number of its records behind each
    value that the primary gets."""
    report_metrics: bool = False
    """Primary only: report the validation metrics of every epoch and the final metrics to the engine that runs the job,
    such as NVFlare. Otherwise the engine learns only which epoch is done."""
    parties: PartyNameList | None = setting(None, example=["notary", "city"], title=PARTY_NAMES_TITLE)
    """Accepted other parties of a job. Default: all."""
    approve: JobHashList = setting((), example=["0b1c2d3e" * 8])
    """Jobs that are approved without `fedsim approve`, by their full 64-digit hash: another job with the same first
    digits can be found in minutes."""

    @property
    def least_list_rows(self) -> int:
        """The fewest rows of a token in the encrypted table."""
        return self.min_list_rows or 1


class TlsSettings(ConfigSection):
    """Certificate and key from `fedsim certs`. A running party reads them again every 30 seconds: new connections use a
    renewed certificate, and an authority file with two certificates makes both valid."""

    authority: ConfigSecret = setting(example="certs/ca.pem")
    """Certificate of the authority that signed the certificates of all parties."""
    certificate: ConfigSecret = setting(example="certs/secondary-rentals.pem")
    """Certificate of this party, valid for its role and name only."""
    key: ConfigSecret = setting(example="certs/secondary-rentals.key")
    """Private key of the certificate; a file must be readable only by its owner."""
    revoked: ConfigPath | None = setting(None, example="certs/revoked.pem", title="a path, relative to this file")
    """The authority's list of revoked certificates, from `fedsim certs revoke`; read whenever a peer connects."""


class DataSettings(ConfigSection):
    """The party's table: a ``file``, or a ``table`` or ``query`` of the database at ``url``."""

    file: ConfigPath | None = setting(None, example="rentals.csv", title="a path, relative to this file")
    """File with the table: .csv, .csv.gz, .tsv, .tsv.gz or .parquet."""
    url: str | None = setting(None, example="postgresql://reader@db.example.org/city", repr=False, title=URL_TITLE)
    """Database with the table, instead of a file; FedSim only reads from it. The password for PostgreSQL is taken from
    the URL, PGPASSWORD or ~/.pgpass."""
    table: ColumnName | None = setting(None, example="flats", title="the name of a table")
    """Name of the table in the database, as schema.table if needed."""
    query: str | None = setting(None, example=EXAMPLE_QUERY, repr=False, title=QUERY_TITLE)
    """SQL query, instead of `table`. Use `order by`, so that every run reads the rows in the same order."""
    separator: Annotated[str | None, Field(min_length=1, title="one character, or the word tab")] = setting(
        None, example=";"
    )
    """Column separator of a text file. Default: a comma for .csv, a tab for .tsv."""
    missing: Annotated[tuple[str, ...], Strict(False), Field(title='a list of words such as ["NA"]')] = setting(
        (), example=["NA"]
    )
    """Words that mark missing values in feature columns, in addition to empty cells."""
    formats: dict[str, Annotated[str, OneOf(CELL_FORMATS)]] = setting(
        example={"price": "decimal-comma"}, default_factory=dict, title="a table of columns and formats"
    )
    """How numbers or dates of a text column are written, where not like 1234.56 and 2020-12-31: decimal-comma (1.234,56
    €), decimal-point ($1,234.56), day-month-year (31/12/2020), month-day-year or year-month-day."""
    _folder: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _check_source(self, info: ValidationInfo) -> Self:
        self._folder = Path((info.context or {}).get("folder", ""))
        if (self.file is None) == (self.url is None):
            raise RuleError("give either a file or the url of a database", "file", code="file-or-url")
        other = ("table", "query") if self.file else ("separator",)
        for name in other:
            if getattr(self, name) is not None:
                message = f"{name} is only valid for a {'database' if self.file else 'file'}; remove it"
                raise RuleError(message, name, code="setting-not-applicable")
        _ = self.source  # validates url, table and query
        return self

    @property
    def source(self) -> TableSource:
        """The file or the table of a database."""
        if self.file is not None:
            return self.file
        return SqlTable(self.url or "", self.table, self.query, self._folder)

    def read(self, columns: list[str] | None = None) -> "pl.DataFrame":
        """Read the table, or some of its columns, as every command reads it."""
        from fedsim.data.table_reader import read_table  # noqa: PLC0415 - polars is heavy, and most files are only read

        return read_table(
            self.source, columns, separator=self.separator, option="data.separator =", formats=self.formats
        )


class FeatureSettings(ConfigSection):
    """The feature columns; without ``columns`` and ``drop`` all columns that are not identifiers or label."""

    columns: ColumnNameList | None = setting(None, example=["rooms", "rent"], title=COLUMN_NAMES_TITLE)
    """The feature columns. Default: all columns except identifiers, label and those in `drop`. An identifier listed
    here is used as a feature, too."""
    drop: ColumnNameList = setting((), example=["id"])
    """Columns to ignore, such as row numbers; cannot be combined with `columns`."""
    kinds: dict[str, Literal["number", "category", "date"]] = setting(
        example={"sold": "date"}, default_factory=dict, title="a table of columns and kinds"
    )
    """Kind of a column where it should not be derived from the type: number, category or date. By default, text is a
    category, or a number if all its values are numbers."""

    @model_validator(mode="after")
    def _check_columns_or_drop(self) -> Self:
        if self.columns is not None and self.drop:
            raise RuleError("both columns and drop are given; remove one of them", "drop", code="columns-and-drop")
        return self


class LabelSettings(ConfigSection):
    """The label."""

    column: ColumnName = setting(example="price")
    """The column to predict; it never leaves the party and is not used as a feature. Records without a label are not
    used for training; they are predicted afterwards."""
    split_by: ColumnName | None = setting(None, example="sold", title="the name of a column")
    """The column by which the records are split if the job's task.split is `time` or `column`: dates, numbers or, for
    `column`, anything. It never leaves the party, and is a feature only if listed under features.columns."""


class LinkageSettings(ConfigSection):
    """The key for encoding identifiers."""

    key: ConfigSecret = setting(example="linkage.key")
    """The linkage key from `fedsim certs key`: the same key at the primary and the secondary, never at the
    coordinator. Jobs without a coordinator need none."""


class ServingSettings(ConfigSection):
    """How `fedsim serve` answers."""

    when_partner_is_away: Literal["error", "solo", "others"] = "error"
    """What happens to a prediction while a secondary is offline: `error` fails; `solo` answers with a second model that
    uses only the primary's features and is trained after the first; `others` goes on with the other secondaries, if the
    job was trained with `party_dropout`."""
    explain: bool = False
    """Whether clients of `fedsim serve` may ask what contributed to a prediction: similarities, weights and effects of
    partner records, under numbers that are valid in one answer only, and effects of the record's own columns."""


class ConnectionSettings(ConfigSection):
    """Where the party listens, and how it reaches others."""

    listen: str | None = setting(None, example="0.0.0.0:7412", title="host and port, such as 0.0.0.0:7412")
    """Address at which this party listens. Default: its address in the job."""
    proxy: str | None = setting(None, example="http://proxy.example.org:3128", title=PROXY_TITLE)
    """Proxy for all outgoing connections of this party: HTTP (CONNECT) or SOCKS5. Environment variables such as
    https_proxy have no effect."""
    proxy_login: ConfigSecret | None = setting(None, example="proxy-login", title=KEY_TITLE)
    """File with user:password for the proxy in its first line, readable only by its owner. Default: the environment
    variable FEDSIM_PROXY_LOGIN, if it is set."""
    relay_authority: ConfigSecret | None = setting(None, example="relay-ca.pem", title=KEY_TITLE)
    """Certificate of the authority that signed the certificate of the job's relay. Default: tls.authority."""

    @model_validator(mode="after")
    def _check_addresses(self) -> Self:
        if self.listen is not None:
            split_address(self.listen)
        if self.proxy is not None:
            Proxy.parse(self.proxy)
        elif self.proxy_login is not None:
            raise RuleError("it has no effect without proxy; give the proxy, too", "proxy_login", code="no-proxy")
        return self


class TelemetrySettings(ConfigSection):
    """How the owner monitors this party; nothing is exported by default, and no setting concerns another party."""

    metrics: str | None = setting(None, example="127.0.0.1:9464", title="host and port, such as 127.0.0.1:9464")
    """Address at which Prometheus reads metrics, under /metrics, without a password. Requires
    `pip install fedsim-vfl[telemetry]`."""
    logs: Literal["text", "json"] = "text"
    """Log lines on standard error: `text`, or one JSON object per line."""

    @model_validator(mode="after")
    def _check_metrics_address(self) -> Self:
        if self.metrics is not None:
            split_address(self.metrics)
        return self


def _check_identifier_columns(identifiers: dict[str, Any]) -> dict[str, Any]:
    for name, column in identifiers.items():
        columns = column.values() if isinstance(column, dict) else [column]
        if not all(isinstance(own, str) and 1 <= len(own) <= MAX_COLUMN_NAME_LENGTH for own in columns):
            message = "give the name of a column, or a table of column names for one secondary"
            raise RuleError(message, name, code="invalid-column-name")
    return identifiers


# Settings that a role must not have, with the reason, and sections that it must have.
_HOLDS_NOTHING = "the coordinator must not have data, features, labels or keys; remove it"
_NO_CURVES = "only the primary has training curves; remove it"
_NO_SEARCH = "only a coordinator searches for partners; remove it"
_COORDINATOR_LIMITS: dict[tuple[str, ...], str] = {
    ("policy", name): "only a coordinator has this limit; remove it" for name in ("max_new_links",)
}
_SECONDARY_BUDGETS: dict[tuple[str, ...], str] = {
    ("policy", name): "only a secondary has this limit; remove it"
    for name in (
        "max_studies",
        "max_jobs",
        "max_total_epochs",
        "max_records",
        "max_record_uses",
        "max_tokens",
        "min_cell_metres",
        "min_list_rows",
    )
}
_FORBIDDEN: dict[Role, dict[tuple[str, ...], str]] = {
    Role.COORDINATOR: {
        **dict.fromkeys((("data",), ("identifiers",), ("features",), ("label",), ("linkage",)), _HOLDS_NOTHING),
        ("serving",): "only the primary serves predictions; remove it",
        ("tracking",): _NO_CURVES,
        ("policy", "report_metrics"): _NO_CURVES,
        ("policy", "columns"): "a coordinator has no columns; remove it",
        ("policy", "min_candidates"): "a coordinator has no records; remove it",
        ("policy", "audit"): "a coordinator has no table to audit; remove it",
        **_SECONDARY_BUDGETS,
    },
    Role.PRIMARY: {
        **_COORDINATOR_LIMITS,
        ("engine",): _NO_SEARCH,
        ("policy", "max_new_records"): "it limits what the primary may ask; remove it",
        **_SECONDARY_BUDGETS,
    },
    Role.SECONDARY: {
        **_COORDINATOR_LIMITS,
        ("engine",): _NO_SEARCH,
        ("label",): "only the primary has a label; remove it, or list the column under features",
        ("serving",): "only the primary serves predictions; remove it",
        ("tracking",): _NO_CURVES,
        ("policy", "report_metrics"): _NO_CURVES,
        ("network", "listen"): "a secondary does not accept connections; remove it",
    },
}
_REQUIRED: dict[Role, tuple[str, ...]] = {
    Role.COORDINATOR: (),
    Role.PRIMARY: ("data", "label"),
    Role.SECONDARY: ("data",),
}


class PartyFile(ConfigFile):
    """The settings of one party; its paths are relative to the folder of its file."""

    name: PartyName = setting(example="rentals")
    """Name of this party, as in the job."""
    role: Annotated[Literal[Role.PRIMARY, Role.SECONDARY, Role.COORDINATOR], BeforeValidator(_to_role)] = setting(
        example="secondary"
    )
    """Role of this party: the primary has the label, a secondary contributes the features of its records, the
    coordinator finds partners and sees no table."""
    folder: ConfigPath = setting(example="rentals-run")
    """Folder for this party's runs, approvals, audit log and models; created if it does not exist."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    """Where this party's networks are trained: cpu, cuda, or auto for the GPU if there is one. The last digits of the
    weights depend on it."""
    engine: Annotated[str, Field(pattern=_ENGINE_PATTERN, title=ENGINE_TITLE)] = setting("local", example="ray")
    """Where a coordinator searches for partners: `local`, this machine; `ray`, a Ray cluster that is started here for
    the search; `ray:HOST:PORT`, a running cluster of which this machine is a node (`ray:auto` finds it). The links do
    not depend on it. Requires `pip install fedsim-vfl[ray]`."""
    tracking: Annotated[
        str | None,
        Field(pattern="^tensorboard(:.+)?$", title=TRACKING_TITLE),
        AfterValidator(_resolve_tracking),
    ] = setting(None, example="tensorboard", repr=False)
    """Where the training curves go besides the run folder; primary only. `tensorboard` writes event files to the folder
    tensorboard of the run, or to another one (`tensorboard:curves`). Requires `pip install fedsim-vfl[tracking]`."""
    tls: TlsSettings | None = None
    """Certificates from `fedsim certs`. Required unless all parties run on one machine."""
    data: DataSettings | None = None
    """The party's table; a coordinator has none."""
    identifiers: Annotated[dict[str, Any], AfterValidator(_check_identifier_columns)] = setting(
        example={"lat": "latitude"}, default_factory=dict, title="a table of agreed names and own columns"
    )
    """Own column names of identifiers, where they differ from the agreed names. A primary can set them for one
    secondary in [identifiers.NAME]."""
    features: FeatureSettings = FeatureSettings()
    """The feature columns and their kinds."""
    label: LabelSettings | None = None
    """The label; primary only."""
    linkage: LinkageSettings | None = None
    """The key for encoding identifiers; only for jobs with a coordinator."""
    serving: ServingSettings = ServingSettings()
    """How predictions are served; primary only."""
    network: ConnectionSettings = ConnectionSettings()
    """Where this party listens, and how it reaches others."""
    telemetry: TelemetrySettings = TelemetrySettings()
    """Metrics, traces and logs for the owner of this party."""
    policy: Policy = Policy()

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        for path, reason in _FORBIDDEN[self.role].items():
            if self._is_set(path):
                raise RuleError(reason, *path, code="forbidden-for-role")
        for section in _REQUIRED[self.role]:
            if not self._is_set((section,)):
                raise RuleError(f"a {self.role} needs this section; add it", section, code="required-for-role")
        if self.role is Role.SECONDARY:
            for name, column in self.identifiers.items():
                if isinstance(column, dict):
                    message = "only a primary has identifiers per secondary; give the name of a column"
                    raise RuleError(message, "identifiers", name, code="forbidden-for-role")
        return self

    def _is_set(self, path: Iterable[str]) -> bool:
        section: Any = self
        for name in path:
            if name not in section.model_fields_set:
                return False
            section = getattr(section, name)
        return True

    @property
    def party(self) -> Party:
        """Role and name of the party."""
        return Party(self.role, self.name)


def read_party_file(path: Path) -> PartyFile:
    """Read and validate a party file.

    Parameters
    ----------
    path
        The TOML file; paths in it are relative to its folder.

    Raises
    ------
    FileError, ConfigFileError
        As for :func:`fedsim.config.read_job`.

    Examples
    --------
    >>> read_party_file(Path("rentals.toml")).party  # doctest: +SKIP
    Party(role=<Role.SECONDARY: 'secondary'>, name='rentals')
    """
    return PartyFile.read(path)


# How a party is reached and reaches others


def party_credentials(party_file: PartyFile, now: datetime | None = None) -> Credentials | None:
    """Read what a party needs for its connections: certificate, key, authority and proxy; None without ``[tls]``."""
    tls, network = party_file.tls, party_file.network
    if tls is None:
        return None
    found = read_credentials(tls.authority, tls.certificate, tls.key, party_file.party, now, tls.revoked)
    authority = b"".join(map(certificate_pem, read_certificates(path))) if (path := network.relay_authority) else None
    return replace(found, proxy=read_proxy(network), relay_authority=authority)


def read_proxy(network: ConnectionSettings) -> Proxy | None:
    """Return the proxy of a party's outgoing connections, with its login."""
    return Proxy.parse(network.proxy, _read_proxy_login(network.proxy_login)) if network.proxy else None


def _read_proxy_login(path: SecretSource | None) -> str:
    """Return ``user:password`` for the proxy, from a file or the environment; empty if there is none."""
    if path is None:
        return os.environ.get(PROXY_LOGIN_VARIABLE, "")
    check_private(path)
    try:
        content = read_secret(path)
    except OSError as error:
        fault = f"network.proxy_login: {path} cannot be read ({error.strerror})"
        raise FileError(f"{fault}; write user:password into it", code="no-proxy-login") from error
    found = content.partition(b"\n")[0].decode("utf-8", "replace").strip()
    if ":" not in found:
        raise FileError(f"{path} does not contain user:password in its first line", code="no-proxy-login")
    return found


def listen_address(job: Job, party_file: PartyFile) -> str:
    """Return where a coordinator or primary accepts connections; behind a relay, the address of the relay."""
    address = job.address_of(party_file.party)
    if party_file.network.listen and RelayAddress.parse(address):
        fault = f"the job reaches {party_file.party} through a relay, so it does not listen"
        raise SettingError(f"{fault}; remove network.listen", code="listen-behind-relay")
    return party_file.network.listen or address


# The columns that a party uses in a job


@dataclass(frozen=True)
class PartyColumns:
    """A party's columns by use.

    ``identifiers`` maps, for every secondary, agreed names to own columns. ``features`` is None if the party file does
    not list them and the header of the table is not known yet.
    """

    identifiers: Mapping[str, Mapping[str, str]]
    features: tuple[str, ...] | None
    label: str | None
    split: str | None = None

    @property
    def linking(self) -> tuple[str, ...]:
        """All own identifier columns, without duplicates."""
        return tuple(dict.fromkeys(column for columns in self.identifiers.values() for column in columns.values()))

    def to_dict(self) -> dict[str, Any]:
        """Return the columns in types that JSON has."""
        columns = {**asdict(self), "features": None if self.features is None else list(self.features)}
        return columns if self.split else {name: value for name, value in columns.items() if name != "split"}


def require_membership(job: Job, party_file: PartyFile) -> None:
    """Check that the party is in the job and that its identifiers have agreed names."""
    if party_file.party not in job.parties:
        same_role = [party.name for party in job.parties if party.role is party_file.role]
        expected = f"its {party_file.role} is {' or '.join(same_role)}; correct name or role in the party file"
        raise SettingError(f"{party_file.party} is not a party of job '{job.name}': {expected}", code="not-a-party")
    linked = _linked_secondaries(job, party_file)
    if linked and party_file.linkage is None and job.kind.SHARES_KEY:
        message = f"{party_file.path}: {party_file.party} is linked and needs a key; add [linkage] key"
        raise SettingError(message, code="no-linkage-key", party=str(party_file.party))
    where = f"{party_file.path}: identifiers"
    agreed = {name: job.secondaries[name].columns for name in linked}
    for name, column in party_file.identifiers.items():
        if isinstance(column, dict):
            _check_known(name, agreed, where)
            for inner in column:
                _check_known(inner, agreed[name], f"{where}.{name}")
        else:
            _check_known(name, [agreed_name for names in agreed.values() for agreed_name in names], where)


def resolve_columns(job: Job, party_file: PartyFile, header: Sequence[str] | None = None) -> PartyColumns:
    """Return the columns that the party uses in the job, checked against the ``header`` of its table if it is known."""
    require_membership(job, party_file)
    identifiers = {name: identifier_columns(job, party_file, name) for name in _linked_secondaries(job, party_file)}
    label = party_file.label.column if party_file.label else None
    linking = list(dict.fromkeys(column for columns in identifiers.values() for column in columns.values()))
    if label in linking:
        message = "the label is used as an identifier and would leave the party; choose other identifiers"
        raise SettingError(message, code="label-is-identifier")
    split = _split_column(job, party_file)
    used = [*linking, *(column for column in (label, split) if column)]
    if header is not None:
        for agreed, column in ((a, c) for columns in identifiers.values() for a, c in columns.items()):
            if agreed == column and column not in header and party_file.data:
                message = missing_identifier_message(agreed, header, party_file.path)
                raise InputError(f"{party_file.data.source}: {message}", code="missing-column", column=column)
        _check_present(party_file, [*used, *(party_file.data.formats if party_file.data else ())], header)
    return PartyColumns(identifiers, _feature_columns(party_file, used, header), label, split)


def _split_column(job: Job, party_file: PartyFile) -> str | None:
    """Return the primary's column by which a job splits, if it splits by one."""
    if party_file.label is None or not SPLITS.detail(job.task.split, "needs_column"):
        return None
    if party_file.label.split_by is None:
        message = f"job '{job.name}' splits by {job.task.split}; name the column in label.split_by"
        raise SettingError(message, code="no-split-column", split=job.task.split)
    return party_file.label.split_by


def identifier_columns(job: Job, party_file: PartyFile, secondary: str) -> dict[str, str]:
    """Return the party's identifier columns for one secondary by agreed name; names that are not mapped are columns."""
    special = party_file.identifiers.get(secondary)
    mapping = {**party_file.identifiers, **(special if isinstance(special, dict) else {})}
    columns = ((name, mapping.get(name)) for name in job.secondaries[secondary].columns)
    return {name: column if isinstance(column, str) else name for name, column in columns}


def columns_outside_policy(job: Job, party_file: PartyFile) -> list[str]:
    """Return the columns that the party file uses but its policy does not allow; only its owner may see them."""
    allowed = party_file.policy.columns
    if allowed is None or party_file.role is Role.COORDINATOR:
        return []
    columns = resolve_columns(job, party_file)
    own = (column for column in (columns.label, columns.split) if column)
    used = [*columns.linking, *(columns.features or ()), *own]
    return [column for column in dict.fromkeys(used) if column not in allowed]


def label_among_features(primary: PartyFile, secondary: PartyFile, features: Iterable[str]) -> str | None:
    """Return the feature of a secondary that has the name of the label, which it may give away; None if there is none.

    A column that the secondary lists under ``features.columns`` is meant. Only those who have both files can compare.
    """
    if primary.label is None or secondary.features.columns is not None:
        return None
    return next((name for name in features if have_same_name(name, primary.label.column)), None)


def _linked_secondaries(job: Job, party_file: PartyFile) -> list[str]:
    """Return the secondaries for whose linkage this party encodes identifiers."""
    if party_file.role is Role.SECONDARY:
        return [name for name in job.secondaries if name == party_file.name]
    return list(job.secondaries) if party_file.role is Role.PRIMARY else []


def _feature_columns(
    party_file: PartyFile, used: Sequence[str], header: Sequence[str] | None
) -> tuple[str, ...] | None:
    settings, allowed = party_file.features, party_file.policy.columns
    if party_file.role is Role.COORDINATOR:
        return ()
    if header is not None:
        _check_present(party_file, [*(settings.columns or ()), *settings.drop], header)
    if settings.columns is not None:
        features = settings.columns
    elif header is None:
        return None
    else:
        excluded = {*used, *settings.drop}
        features = tuple(name for name in header if name not in excluded and (allowed is None or name in allowed))
    if not features:
        raise SettingError("no feature columns are left; list some under features.columns", code="no-features")
    if party_file.label and party_file.label.column in features:
        raise SettingError("the label is listed under features.columns, too; remove it there", code="label-is-feature")
    for name in settings.kinds:
        _check_known(name, features, f"{party_file.path}: features.kinds")
    return features


def _check_known(name: str, known: Iterable[str], where: str) -> None:
    known = list(dict.fromkeys(known))
    if name not in known:
        near = nearest_word(name, known)
        hint = f"did you mean '{near}'?" if near else f"choose from {', '.join(known) or 'nothing'}"
        message = f"{where}: '{replace_unprintable(name[:60])}' is unknown; {hint}"
        raise SettingError(message, code="unknown-column", value=name)


def _check_present(party_file: PartyFile, columns: Iterable[str], header: Sequence[str]) -> None:
    source = party_file.data.source if party_file.data else "the table"
    for column in columns:
        if column not in header:
            message = f"{source}: {missing_column_message(column, header)}"
            raise InputError(message, code="missing-column", column=column)
