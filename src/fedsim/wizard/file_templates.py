"""Render the commented job and party files that `fedsim init` writes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedsim.config.schema import SCHEMA_FILES, to_toml
from fedsim.data.sql import SqlTable, TableSource
from fedsim.linkage.encoding import SchemaField
from fedsim.linkage.encoding.schema import Schema
from fedsim.wizard.learning_proposal import FeatureProposal, Guess

COORDINATOR_NAME, KEY_FILE, CERTIFICATE_FOLDER = "notary", "linkage.key", "certs"
FILL_IN_MARK = "FILL IN:"
MAX_PARTY_NAME_LENGTH = 30  # letters of a party's name
MAX_PARENT_FOLDERS = 2  # folders upwards in a relative path; beyond, an absolute one is clearer


@dataclass(frozen=True, eq=False)
class TablePlan:
    """What one party's file says of its table."""

    source: TableSource
    separator: str | None
    missing: tuple[str, ...]
    identifiers: dict[str, str]
    learning: FeatureProposal


@dataclass(frozen=True, eq=False)
class SetupPlan:
    """All that the files say; a party whose table is not at hand has a name and no ``Own``."""

    primary: str
    secondary: str
    fields: Sequence[SchemaField]
    k: int
    tau: float | None
    task: Guess | None
    split: Guess
    label: Guess | None
    epochs: int | None = None
    batch: int | None = None
    own: dict[str, TablePlan] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether both tables are at hand."""
        return len(self.own) == 2

    def names(self) -> dict[str, str]:
        """Role and name of every party."""
        return {"coordinator": COORDINATOR_NAME, "primary": self.primary, "secondary": self.secondary}


def render_job(plan: SetupPlan) -> str:
    """The file that all parties share."""
    return "\n".join(_job(plan)) + "\n"


def render_party(plan: SetupPlan, role: str, folder: Path) -> str:
    """The file of one party, to lie in ``folder``."""
    return "\n".join(_party(plan, role, folder)) + "\n"


def _job(plan: SetupPlan) -> Iterator[str]:
    yield f"#:schema ./schemas/{SCHEMA_FILES['job']}"
    yield "# What all parties agree on: the same file everywhere. `fedsim explain KEY` tells what a setting means,"
    yield "# `fedsim check job.toml PARTY.toml` what is wrong and what it will cost, before anything is sent."
    yield f"name = {to_toml(plan.primary if plan.own.get('primary') else plan.secondary)}"
    yield "seed = 0"
    yield from _reachable(
        plan, "coordinator", COORDINATOR_NAME, 7411, "finds partners by encoded identifiers; no table, no key"
    )
    yield from _reachable(plan, "primary", plan.primary, 7412, "has the label, leads the training, keeps the model")
    yield "\n[task]"
    if plan.task:
        yield f"kind = {to_toml(plan.task.word)} # {plan.task.reason}"
    else:
        yield f'kind = "regression" # {FILL_IN_MARK} "classification" if the primary\'s label is a class'
    yield f"split = {to_toml(plan.split.word)} # {plan.split.reason}"
    yield "\n[training]"
    yield 'preset = "modern" # the best in our experiments; "paper" repeats the paper'
    yield 'method = "fedsim" # or avgsim, featuresim, top1sim'
    yield f"epochs = {plan.epochs}" if plan.epochs else "# epochs = 60 # as the preset has it"
    if plan.batch:
        yield f"batch_size = {plan.batch} # records per step, by the number of records; larger ones need fewer messages"
    else:
        yield "# batch_size = 512 # as the preset has it; 32 to 256 for fewer than 7,000 records"
    yield '# wire = "float16" # half the bytes on the wire, rounded numbers'
    yield from _terms(plan)


def _reachable(plan: SetupPlan, section: str, name: str, port: int, comment: str) -> Iterator[str]:
    yield f"\n[{section}] # {comment}"
    known = section == "coordinator" or section in plan.own
    yield f"name = {to_toml(name)}" + ("" if known else f" # {FILL_IN_MARK} its name, the same as in its own file")
    if plan.whole:
        yield f'address = "127.0.0.1:{port}" # where the others reach it; between machines a host name'
    else:
        yield f'address = "{section}.example.org:{port}" # {FILL_IN_MARK} where the others reach it'


def _terms(plan: SetupPlan) -> Iterator[str]:
    alone = "" if "secondary" in plan.own else f" # {FILL_IN_MARK} the partner's name, here and in the next header"
    yield f"\n[secondaries.{plan.secondary}]{alone}"
    yield f"k = {plan.k} # partners per record of the primary"
    yield 'metric = "hamming"'
    if plan.tau:
        yield "# Noise on the similarities: the chance to guess a partner's filter from one of them is at most tau."
        yield "# Smaller hides more and tells less; without the line there is no noise."
        yield f"tau = {plan.tau:g}"
    else:
        yield "# No noise on the similarities: the primary sees them as they are. `tau = 0.05` would blur them."
    yield f"\n[secondaries.{plan.secondary}.schema]"
    yield "version = 1"
    if plan.whole:
        yield "# Ranges and thresholds are round numbers around the values of both tables; a value outside is refused."
    else:
        yield f"# {FILL_IN_MARK} ranges that hold the values of both tables; these are of one table alone, with room around."
    yield "fields = ["
    for described in Schema(plan.fields).to_dict()["fields"]:
        yield f"  {_field(described)},"
    yield "]"


def _field(described: dict[str, Any]) -> str:
    """A field on one line; dates as TOML has them, whole numbers without a point."""
    encoding = described["encoding"]
    dates = encoding["kind"] == "date"
    settings = [
        f"{name} = {to_toml(_short(value), date=dates and name in ('low', 'high'))}" for name, value in encoding.items()
    ]
    return f"{{ column = {to_toml(described['column'])}, encoding = {{ {', '.join(settings)} }} }}"


def _short(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value


_ROLE_COMMENTS = {
    "coordinator": "the coordinator: it compares encoded identifiers and has neither table nor key",
    "primary": "the primary: it has the label and learns from the partner's records",
    "secondary": "a secondary: it lets the primary learn from its records, under its own conditions",
}


def _party(plan: SetupPlan, role: str, folder: Path) -> Iterator[str]:
    name = plan.names()[role]
    yield f"#:schema ./schemas/{SCHEMA_FILES['party']}"
    yield f"# {name}, {_ROLE_COMMENTS[role]}. Nobody else sees this file."
    yield f"name = {to_toml(name)}"
    yield f"role = {to_toml(role)}"
    yield f"folder = {to_toml(f'{name}-run')} # approvals, runs, models and the audit log"
    yield "\n[tls] # made by `fedsim certs`; not needed while all parties run in one process"
    yield f'authority = "{CERTIFICATE_FOLDER}/ca.pem"'
    yield f'certificate = "{CERTIFICATE_FOLDER}/{role}-{name}.pem"'
    yield f'key = "{CERTIFICATE_FOLDER}/{role}-{name}.key"'
    own = plan.own.get(role)
    if own:
        yield from _table(plan, role, own, folder)


def _table(plan: SetupPlan, role: str, own: TablePlan, folder: Path) -> Iterator[str]:
    yield "\n[data]"
    yield from _source(own.source, folder)
    if own.separator:
        yield f"separator = {to_toml(own.separator)}"
    if own.missing:
        yield f"missing = {to_toml(own.missing)} # words that stand where nothing is known"
    renamed = {agreed: column for agreed, column in own.identifiers.items() if agreed != column}
    if renamed:
        yield "\n[identifiers] # agreed names and the own columns behind them"
        yield from (to_toml({agreed: column})[2:-2] for agreed, column in renamed.items())
    yield from _features(own.learning)
    if role == "primary":
        yield "\n[label]"
        yield f"column = {to_toml(plan.label.word if plan.label else '')} # {plan.label.reason if plan.label else FILL_IN_MARK}"
    yield "\n[linkage]"
    yield f"key = {to_toml(KEY_FILE)} # the same at primary and secondary, never at the coordinator"
    if role == "secondary":
        yield from _policy(plan, own)


def _features(learning: FeatureProposal) -> Iterator[str]:
    if learning.dropped or learning.dates or learning.linking:
        yield "\n[features]"
    if learning.linking:
        yield "# What links is learnt from, too: it stays here, and in our experiments it told more than many partners."
        yield f"columns = {to_toml((*learning.columns, *learning.linking))}"
        yield from (f"# left out: {to_toml(name)}, {reason}" for name, reason in learning.dropped)
    elif learning.dropped:
        yield "drop = ["
        yield from (f"  {to_toml(name)}, # {reason}" for name, reason in learning.dropped)
        yield "]"
    if learning.dates:
        yield f"kinds = {to_toml(dict.fromkeys(learning.dates, 'date'))}"


def _policy(plan: SetupPlan, own: TablePlan) -> Iterator[str]:
    yield "\n[policy] # what this party demands of every job; `fedsim explain policy` lists more"
    if plan.tau:
        yield f"max_tau = {plan.tau:g} # jobs with less noise are refused"
    columns = (*own.identifiers.values(), *own.learning.columns)
    yield f"columns = {to_toml(columns)} # no other column may be used"


def _source(source: TableSource, folder: Path) -> Iterator[str]:
    if isinstance(source, Path):
        yield f"file = {to_toml(relative_path(source, folder))}"
        return
    yield f"url = {to_toml(_url(source, folder))}"
    yield f"table = {to_toml(source.table)}"
    if not source.file:
        yield '# password_file = "password" # or PGPASSWORD, or ~/.pgpass; a password in a URL is not written here'


def _url(source: SqlTable, folder: Path) -> str:
    """The URL as the party file needs it: a file beside it, a server without password."""
    return f"sqlite:///{quote(relative_path(source.file, folder))}" if source.file else source.without_password()


def relative_path(path: Path, folder: Path) -> str:
    """A path as seen from a folder; an absolute one where that is far away.

    >>> relative_path(Path("flats.csv"), Path("job")), relative_path(Path("/data/flats.csv"), Path("/home/ann/work/job"))
    ('../flats.csv', '/data/flats.csv')
    """
    seen = os.path.relpath(path.absolute(), folder.absolute())
    return str(path.absolute()) if Path(seen).parts.count("..") > MAX_PARENT_FOLDERS else seen


def propose_party_names(sources: Mapping[str, TableSource]) -> dict[str, str]:
    """A name for every party by its role, after its table where that is at hand; coordinator first.

    >>> propose_party_names({"primary": Path("Flats 2020.csv.gz")})
    {'coordinator': 'notary', 'primary': 'flats-2020', 'secondary': 'partner'}
    """
    found = {"coordinator": COORDINATOR_NAME, "primary": "primary", "secondary": "partner"}
    for role, source in sources.items():
        stem = source.stem if isinstance(source, SqlTable) else source.name.partition(".")[0]
        name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:MAX_PARTY_NAME_LENGTH].strip("-")
        found[role] = name if name and name not in (*found.values(), "job") else role
    return found
