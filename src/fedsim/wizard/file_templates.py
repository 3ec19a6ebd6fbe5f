"""Render the commented job and party files that `fedsim init` writes, from the templates in this folder."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import chain, count
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedsim.config.job import DEFAULT_EMBEDDING
from fedsim.config.settings_schema import SCHEMA_FILES, to_toml
from fedsim.config.toml_file import FILL_IN_MARK
from fedsim.data.sql import SqlTable, TableSource
from fedsim.linkage.direct import TokenSchema
from fedsim.linkage.encoding import Schema
from fedsim.registry import METHODS, METRICS
from fedsim.types import CellFormat, TrainingLength
from fedsim.wizard.proposal import DEFAULT_SHARE, FeatureProposal, Guess, LinkageProposal

COORDINATOR_NAME, KEY_FILE, CERTIFICATE_FOLDER = "notary", "linkage.key", "certs"
METHOD = "stacked"  # better than the network alone, or as good, on all datasets; docs/networks.md
MAX_PARTY_NAME_LENGTH = 30
MAX_PARENT_FOLDERS = 2  # in a relative path; beyond, an absolute path is clearer


def linking_columns(identifiers: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """Return the columns that link with any secondary, each once."""
    return tuple(dict.fromkeys(column for columns in identifiers.values() for column in columns.values()))


@dataclass(frozen=True, eq=False)
class TablePlan:
    """What a party file says about the party's table; ``identifiers`` has, by secondary, columns by agreed name."""

    source: TableSource
    separator: str | None
    missing: tuple[str, ...]
    identifiers: Mapping[str, Mapping[str, str]]
    learning: FeatureProposal
    formats: dict[str, CellFormat] = field(default_factory=dict)

    @property
    def linking(self) -> tuple[str, ...]:
        """The columns that link with any secondary, each once."""
        return linking_columns(self.identifiers)


@dataclass(frozen=True, eq=False)
class SetupPlan:
    """The content of all files.

    ``names`` has the name of every party by its key, which is its role; those of further secondaries are numbered, see
    :func:`secondary_keys`. ``links`` has the linkage of every secondary, ``own`` the parties whose tables are
    available, both by key.
    """

    names: dict[str, str]
    links: dict[str, LinkageProposal]
    sigma: float | None
    task: Guess | None
    split: Guess
    label: Guess | None
    label_scale: Guess | None = None
    epochs: int | None = None
    length: TrainingLength | None = None
    own: dict[str, TablePlan] = field(default_factory=dict)
    max_tokens: Mapping[str, int] = field(default_factory=dict)  # of a direct job, where the primary's table is known
    share: str = DEFAULT_SHARE
    m: int | None = None  # without a coordinator

    @property
    def whole(self) -> bool:
        """Whether the tables of primary and secondaries are available."""
        return len(self.own) > 1

    @property
    def direct(self) -> bool:
        """Whether no coordinator takes part; then there is no key."""
        return all(link.encoding is None for link in self.links.values())

    def role_of(self, key: str) -> str:
        """Return the role of a party."""
        return "secondary" if key in self.links else key


def render_job(plan: SetupPlan) -> str:
    """Return the text of the job file."""
    others = [name for name in METHODS.names(in_jobs=True) if name != METHOD]
    values = {"method": METHOD, "other_methods": others, "embedding": "features" if plan.direct else DEFAULT_EMBEDDING}
    return _render("job", plan=plan, coordinator=COORDINATOR_NAME, **values)


def render_party(plan: SetupPlan, key: str, folder: Path) -> str:
    """Return the text of a party file; paths in it are relative to the ``folder`` of the file if that is near."""
    own = plan.own.get(key)
    source = _source_lines(own.source, folder) if own else ()
    identifiers = _renamed_identifiers(own.identifiers) if own else ()
    values = {"source": source, "identifiers": identifiers, "key_file": KEY_FILE}
    return _render("party", name=plan.names[key], role=plan.role_of(key), plan=plan, own=own, **values)


def render_coordinator(name: str) -> str:
    """Return the text of a coordinator's party file, which needs nothing but its name."""
    return _render("party", name=name, role="coordinator", own=None)


def _render(file: str, **values: Any) -> str:
    environment = Environment(  # noqa: S701 - TOML, whose values are written by to_toml
        loader=PackageLoader("fedsim.wizard", ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "toml": to_toml,
        "entry": lambda entry: to_toml(entry)[2:-2],
        "detail": METRICS.detail,
        "fields": _schema_fields,
        "tokens": _token_fields,
    }
    template = environment.get_template(f"{file}.toml.jinja")
    return template.render(schema=SCHEMA_FILES[file], fill_in=FILL_IN_MARK, certificates=CERTIFICATE_FOLDER, **values)


def _schema_fields(schema: Schema) -> Iterator[str]:
    """Yield the fields of a schema as TOML."""
    for described in schema.to_dict()["fields"]:
        settings = []
        for name, value in described["encoding"].items():
            is_date = described["encoding"]["kind"] == "date" and name in ("low", "high")
            is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
            settings.append(f"{name} = {to_toml(int(value) if is_whole else value, date=is_date)}")
        columns = [f"{name} = {to_toml(described[name])}" for name in ("column", "longitude") if name in described]
        yield f"{{ {', '.join(columns)}, encoding = {{ {', '.join(settings)} }} }}"


def _token_fields(schema: TokenSchema) -> Iterator[str]:
    """Yield the fields of a schema of tokens as TOML; settings that have their default are left out."""
    for field_ in schema.fields:
        kind: Any = field_.kind
        usual = {one.name: one.default for one in fields(kind)}
        shown = {name: value for name, value in vars(kind).items() if name == "metres" or usual[name] != value}
        yield to_toml({"columns": list(field_.columns), "kind": field_.kind.KIND, **shown})


def _renamed_identifiers(identifiers: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield sections of own names that differ; per secondary if an agreed name stands for two columns."""
    pairs = {pair for columns in identifiers.values() for pair in columns.items()}
    sections = {f"identifiers.{name}": columns for name, columns in identifiers.items()}
    if len(pairs) == len({agreed for agreed, _ in pairs}):
        sections = {"identifiers": dict(pair for columns in identifiers.values() for pair in columns.items())}
    for section, columns in sections.items():
        if renamed := {agreed: column for agreed, column in columns.items() if agreed != column}:
            yield section, renamed


def _source_lines(source: TableSource, folder: Path) -> Iterator[str]:
    if isinstance(source, Path):
        yield f"file = {to_toml(relative_path(source, folder))}"
        return
    # A database file beside the party file, or a server without its password.
    url = f"sqlite:///{quote(relative_path(source.file, folder))}" if source.file else source.without_password()
    yield f"url = {to_toml(url)}"
    yield f"table = {to_toml(source.table)}"
    if not source.file:
        yield "# the password comes from PGPASSWORD or ~/.pgpass; one in the URL is not copied"


def relative_path(path: Path, folder: Path) -> str:
    """Return a path relative to a folder, or an absolute one if they are far apart.

    >>> relative_path(Path("flats.csv"), Path("job")), relative_path(Path("/data/flats.csv"), Path("/home/ann/a/job"))
    ('../flats.csv', '/data/flats.csv')
    """
    relative = os.path.relpath(path.absolute(), folder.absolute())
    return str(path.absolute()) if Path(relative).parts.count("..") > MAX_PARENT_FOLDERS else relative


def secondary_keys(number: int) -> list[str]:
    """Return the keys of a number of secondaries.

    >>> secondary_keys(3)
    ['secondary', 'secondary-2', 'secondary-3']
    """
    return ["secondary", *(f"secondary-{place}" for place in range(2, number + 1))]


def propose_party_names(sources: Mapping[str, TableSource], *, coordinator: bool = False) -> dict[str, str]:
    """Return a name for every party by its key, derived from its table if that is available.

    >>> propose_party_names({"primary": Path("Flats 2020.csv.gz")})
    {'primary': 'flats-2020', 'secondary': 'partner'}
    """
    names = {"coordinator": COORDINATOR_NAME} if coordinator else {}
    names |= {"primary": "primary", "secondary": "partner"}
    for key, source in sources.items():
        stem = source.stem if isinstance(source, SqlTable) else source.name.partition(".")[0]
        name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:MAX_PARTY_NAME_LENGTH].strip("-")
        others = {"", "job", *(names[other] for other in names if other != key)}
        free = chain((name, key), (f"{key}-{place}" for place in count(2)))
        names[key] = next(word for word in free if word not in others)
    return names
