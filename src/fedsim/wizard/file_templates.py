"""Render the commented job and party files that `fedsim init` writes."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from urllib.parse import quote

from fedsim.config.job import DEFAULT_EMBEDDING
from fedsim.config.settings_schema import SCHEMA_FILES, to_toml
from fedsim.config.toml_file import FILL_IN_MARK
from fedsim.data.sql import SqlTable, TableSource
from fedsim.registry import METHODS, METRICS
from fedsim.types import CellFormat, TrainingLength
from fedsim.wizard.proposal import FeatureProposal, Guess, LinkageProposal

COORDINATOR_NAME, KEY_FILE, CERTIFICATE_FOLDER = "notary", "linkage.key", "certs"
METHOD = "stacked"  # better than the network alone, or as good, on all datasets; docs/networks.md
MAX_PARTY_NAME_LENGTH = 30
MAX_PARENT_FOLDERS = 2  # in a relative path; beyond, an absolute path is clearer


@dataclass(frozen=True, eq=False)
class TablePlan:
    """What a party file says about the party's table; ``identifiers`` has, by secondary, columns by agreed name."""

    source: TableSource
    separator: str | None
    missing: tuple[str, ...]
    identifiers: dict[str, dict[str, str]]
    learning: FeatureProposal
    formats: dict[str, CellFormat] = field(default_factory=dict)

    @property
    def linking(self) -> tuple[str, ...]:
        """The columns that link with any secondary, each once."""
        return tuple(dict.fromkeys(column for columns in self.identifiers.values() for column in columns.values()))


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

    @property
    def whole(self) -> bool:
        """Whether the tables of primary and secondaries are available."""
        return len(self.own) > 1

    def role_of(self, key: str) -> str:
        """Return the role of a party."""
        return "secondary" if key in self.links else key


def render_job(plan: SetupPlan) -> str:
    """Return the text of the job file.

    Parameters
    ----------
    plan
        The content of all files.
    """
    return "\n".join(_job_lines(plan)) + "\n"


def _job_lines(plan: SetupPlan) -> Iterator[str]:
    yield f"#:schema ./schemas/{SCHEMA_FILES['job']}"
    yield "# The settings that all parties agree on; every party has the same file. `fedsim explain SETTING` explains a"
    yield "# setting, `fedsim check job.toml PARTY.toml` finds problems and estimates the cost before anything runs."
    yield f"name = {to_toml(plan.names['primary' if 'primary' in plan.own else 'secondary'])}"
    yield "seed = 0"
    parties = (
        ("coordinator", COORDINATOR_NAME, 7411, "finds partners by encoded identifiers; has no table and no key"),
        ("primary", plan.names["primary"], 7412, "has the label, runs the training, keeps the model"),
    )
    for section, name, port, comment in parties:
        yield f"\n[{section}] # {comment}"
        known = section == "coordinator" or section in plan.own
        yield f"name = {to_toml(name)}" + ("" if known else f" # {FILL_IN_MARK} its name, as in its party file")
        if plan.whole:
            yield f'address = "127.0.0.1:{port}" # where other parties reach it; use a host name between machines'
        else:
            yield f'address = "{section}.example.org:{port}" # {FILL_IN_MARK} where others reach it, or relay://HOST:PORT'
    yield "\n[task]"
    if plan.task:
        yield f"kind = {to_toml(plan.task.word)} # {plan.task.reason}"
    else:
        yield f'kind = "regression" # {FILL_IN_MARK} "classification" if the primary\'s label is a class'
    yield f"split = {to_toml(plan.split.word)} # {plan.split.reason}"
    if plan.label_scale:
        yield f"label_scale = {to_toml(plan.label_scale.word)} # {plan.label_scale.reason}"
    yield "\n[training]"
    yield 'preset = "modern" # best in our experiments; "paper" reproduces the paper'
    yield f'method = "{METHOD}" # or {", ".join(name for name in METHODS.names(in_jobs=True) if name != METHOD)}'
    if plan.length:
        yield "# Chosen by the number of records. Training stops after `patience` epochs without improvement."
        yield f"epochs = {plan.length.epochs} # at most"
        yield f"patience = {plan.length.patience}"
        yield f"batch_size = {plan.length.batch} # records per step; larger: fewer messages"
    else:
        yield f"epochs = {plan.epochs} # at most" if plan.epochs else "# epochs = 60 # at most; 40 to 100 by default"
        yield "# patience = 10 # epochs without improvement before training stops"
        yield "# batch_size = 128 # by default 32 to 256, depending on the number of records"
    yield "# members = 8 # networks of the primary, averaged: more accurate, no more traffic; 1 trains fastest"
    yield '# wire = "float32" # exact numbers, four times the traffic'
    yield 'wire = "int8" # rounds activations and gradients to one byte, with a scale per row'
    yield "\n[protection]"
    yield "# For the trees of method stacked, the secondary sends random features of every linked row, once."
    yield "# They hide little: anyone who knows some rows can estimate the rest; `fedsim approve` measures how well."
    yield f'embedding = "{DEFAULT_EMBEDDING}" # without this line the trees see the primary\'s own columns only'
    for key in plan.links:
        yield from _linkage_lines(plan, key)


def _linkage_lines(plan: SetupPlan, key: str) -> Iterator[str]:
    link, name = plan.links[key], plan.names[key]
    comment = "" if "secondary" in plan.own else f" # {FILL_IN_MARK} the secondary's name, here and in the next header"
    yield f"\n[secondaries.{name}]{comment}"
    yield f"k = {link.k} # partners per record of the primary"
    yield f"metric = {to_toml(link.metric)}"
    if len(link.schema.fields) > 1 and link.schema.positions:
        yield '# similarities = "fields" # one per place or number: the primary can locate each separately'
    elif len(link.schema.fields) > 1:
        yield 'similarities = "fields" # one per field, so that the model learns how much each matters; or "record"'
    if METRICS.detail(link.metric, "relative"):
        off = "" if link.relative else "# "
        yield f"{off}relative = true # a partner that resembles many records counts less for each of them"
    if plan.sigma:
        yield "# Noise on the similarities, relative to their spread. Larger values protect more and are less accurate;"
        yield "# without this line there is no noise."
        yield f"sigma = {plan.sigma:g}"
    else:
        yield "# No noise on the similarities: the primary sees their exact values. `sigma = 0.2` would add noise."
    yield f"\n[secondaries.{name}.schema]"
    yield "version = 1"
    if not link.schema.positions and plan.whole:
        yield "# Ranges and thresholds are round numbers that cover both tables; values outside a range are refused."
    elif not link.schema.positions:
        yield f"# {FILL_IN_MARK} ranges that cover both tables; these cover one table, with a margin."
    yield "fields = ["
    for described in link.schema.to_dict()["fields"]:
        settings = []
        for name, value in described["encoding"].items():
            is_date = described["encoding"]["kind"] == "date" and name in ("low", "high")
            is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
            settings.append(f"{name} = {to_toml(int(value) if is_whole else value, date=is_date)}")
        columns = [f"{name} = {to_toml(described[name])}" for name in ("column", "longitude") if name in described]
        yield f"  {{ {', '.join(columns)}, encoding = {{ {', '.join(settings)} }} }},"
    yield "]"


_ROLE_COMMENTS = {
    "coordinator": "the coordinator: it compares encoded identifiers and has neither table nor key",
    "primary": "the primary: it has the label and learns from the partner's records",
    "secondary": "a secondary: it lets the primary learn from its records, under its own conditions",
}


def render_party(plan: SetupPlan, key: str, folder: Path) -> str:
    """Return the text of a party file.

    Parameters
    ----------
    plan
        The content of all files.
    key
        The party's key in the plan.
    folder
        Where the file will be written; paths in it are relative to this folder if it is near.
    """
    return "\n".join(_party_lines(plan, key, folder)) + "\n"


def render_coordinator(name: str) -> str:
    """Return the text of a coordinator's party file, which needs nothing but its name."""
    return "\n".join(_head_lines(name, "coordinator")) + "\n"


def _head_lines(name: str, role: str) -> Iterator[str]:
    yield f"#:schema ./schemas/{SCHEMA_FILES['party']}"
    yield f"# {name}, {_ROLE_COMMENTS[role]}. No other party sees this file."
    yield f"name = {to_toml(name)}"
    yield f"role = {to_toml(role)}"
    yield f"folder = {to_toml(f'{name}-run')} # approvals, runs, models and the audit log"
    yield "\n[tls] # created by `fedsim certs`; not needed while all parties run in one process"
    yield f'authority = "{CERTIFICATE_FOLDER}/ca.pem"'
    yield f'certificate = "{CERTIFICATE_FOLDER}/{role}-{name}.pem"'
    yield f'key = "{CERTIFICATE_FOLDER}/{role}-{name}.key"'


def _party_lines(plan: SetupPlan, key: str, folder: Path) -> Iterator[str]:
    own, role = plan.own.get(key), plan.role_of(key)
    yield from _head_lines(plan.names[key], role)
    if own is None:
        return
    yield "\n[data]"
    yield from _source_lines(own.source, folder)
    if own.separator:
        yield f"separator = {to_toml(own.separator)}"
    if own.missing:
        yield f"missing = {to_toml(own.missing)} # words that mark missing values"
    if own.formats:
        yield "\n[data.formats] # how numbers and dates are written; `fedsim explain data.formats` lists what is known"
        yield from (to_toml({name: str(written)})[2:-2] for name, written in own.formats.items())
    yield from _identifier_lines(own.identifiers)
    yield from _feature_lines(own.learning)
    if role == "primary":
        yield "\n[label]"
        comment = plan.label.reason if plan.label else FILL_IN_MARK
        yield f"column = {to_toml(plan.label.word if plan.label else '')} # {comment}"
    yield "\n[linkage]"
    yield f"key = {to_toml(KEY_FILE)} # the same at primary and secondary, never at the coordinator"
    if role == "secondary":
        yield "\n[policy] # conditions that every job must meet; `fedsim explain policy` lists more"
        if plan.sigma:
            yield f"min_sigma = {plan.sigma:g} # refuses jobs with less noise"
        columns = (*own.linking, *own.learning.columns)
        yield f"columns = {to_toml(columns)} # no other column may be used"


def _identifier_lines(identifiers: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield the own names of identifiers where they differ; per secondary if an agreed name stands for two columns."""
    pairs = {pair for columns in identifiers.values() for pair in columns.items()}
    sections = {f"identifiers.{name}": columns for name, columns in identifiers.items()}
    if len(pairs) == len({agreed for agreed, _ in pairs}):
        merged = {agreed: column for columns in identifiers.values() for agreed, column in columns.items()}
        sections = {"identifiers": merged}
    for section, columns in sections.items():
        renamed = {agreed: column for agreed, column in columns.items() if agreed != column}
        if renamed:
            yield f"\n[{section}] # agreed name = own column"
            yield from (to_toml({agreed: column})[2:-2] for agreed, column in renamed.items())


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


def _feature_lines(learning: FeatureProposal) -> Iterator[str]:
    if learning.dropped or learning.linking:
        yield "\n[features]"
    if learning.linking:
        yield "# Identifiers are features, too: they stay here, and often help more than the partners' features."
        yield f"columns = {to_toml((*learning.columns, *learning.linking))}"
        yield from (f"# left out: {to_toml(name)}, {reason}" for name, reason in learning.dropped)
    elif learning.dropped:
        yield "drop = ["
        yield from (f"  {to_toml(name)}, # {reason}" for name, reason in learning.dropped)
        yield "]"
    yield "\n[features.kinds] # number, category or date; add a line to change the kind of a column"
    for name, kind in learning.declared.items():
        comment = " # a code, not a quantity" if name in learning.codes else ""
        yield to_toml({name: kind})[2:-2] + comment
    for kind, names in learning.by_kind():
        open_names = [name for name in names if name not in learning.declared]
        if open_names:
            yield f"# {kind}: {', '.join(map(to_toml, open_names))}"


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


def propose_party_names(sources: Mapping[str, TableSource]) -> dict[str, str]:
    """Return a name for every party by its key, derived from its table if that is available.

    Parameters
    ----------
    sources
        The available tables by the key of their party.

    Examples
    --------
    >>> propose_party_names({"primary": Path("Flats 2020.csv.gz")})
    {'coordinator': 'notary', 'primary': 'flats-2020', 'secondary': 'partner'}
    """
    names = {"coordinator": COORDINATOR_NAME, "primary": "primary", "secondary": "partner"}
    for key, source in sources.items():
        stem = source.stem if isinstance(source, SqlTable) else source.name.partition(".")[0]
        name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:MAX_PARTY_NAME_LENGTH].strip("-")
        others = {"", "job", *(names[other] for other in names if other != key)}
        free = chain((name, key), (f"{key}-{place}" for place in count(2)))
        names[key] = next(word for word in free if word not in others)
    return names
