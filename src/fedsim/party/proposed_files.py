"""The text of job and party files as `fedsim init` writes them: commented, and marked where something is to fill in."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedsim.data.sql_source import Source, SqlTable
from fedsim.linkage.encoding import Field
from fedsim.linkage.encoding.schema import Schema
from fedsim.party.explain import toml
from fedsim.party.proposal_learning import Guess, Learning
from fedsim.party.shipped_schemas import FILES

COORDINATOR, KEY, CERTS = "notary", "linkage.key", "certs"
FILL_IN = "FILL IN:"
LONGEST = 30  # letters of a party's name
DEEPEST = 2  # folders upwards in a relative path; beyond, an absolute one is clearer


@dataclass(frozen=True, eq=False)
class Own:
    """What one party's file says of its table."""

    source: Source
    separator: str | None
    missing: tuple[str, ...]
    identifiers: dict[str, str]
    learning: Learning


@dataclass(frozen=True, eq=False)
class Plan:
    """All that the files say; a party whose table is not at hand has a name and no ``Own``."""

    primary: str
    secondary: str
    fields: Sequence[Field]
    k: int
    tau: float | None
    task: Guess | None
    split: Guess
    label: Guess | None
    epochs: int | None = None
    batch: int | None = None
    own: dict[str, Own] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether both tables are at hand."""
        return len(self.own) == 2

    def names(self) -> dict[str, str]:
        """Role and name of every party."""
        return {"coordinator": COORDINATOR, "primary": self.primary, "secondary": self.secondary}


def job_text(plan: Plan) -> str:
    """The file that all parties share."""
    return "\n".join(_job(plan)) + "\n"


def party_text(plan: Plan, role: str, folder: Path) -> str:
    """The file of one party, to lie in ``folder``."""
    return "\n".join(_party(plan, role, folder)) + "\n"


def _job(plan: Plan) -> Iterator[str]:
    yield f"#:schema ./schemas/{FILES['job']}"
    yield "# What all parties agree on: the same file everywhere. `fedsim explain KEY` tells what a setting means,"
    yield "# `fedsim check job.toml PARTY.toml` what is wrong and what it will cost, before anything is sent."
    yield f"name = {toml(plan.primary if plan.own.get('primary') else plan.secondary)}"
    yield "seed = 0"
    yield from _reachable(
        plan, "coordinator", COORDINATOR, 7411, "finds partners by encoded identifiers; no table, no key"
    )
    yield from _reachable(plan, "primary", plan.primary, 7412, "has the label, leads the training, keeps the model")
    yield "\n[task]"
    if plan.task:
        yield f"kind = {toml(plan.task.word)} # {plan.task.reason}"
    else:
        yield f'kind = "regression" # {FILL_IN} "classification" if the primary\'s label is a class'
    yield f"split = {toml(plan.split.word)} # {plan.split.reason}"
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


def _reachable(plan: Plan, section: str, name: str, port: int, comment: str) -> Iterator[str]:
    yield f"\n[{section}] # {comment}"
    known = section == "coordinator" or section in plan.own
    yield f"name = {toml(name)}" + ("" if known else f" # {FILL_IN} its name, the same as in its own file")
    if plan.whole:
        yield f'address = "127.0.0.1:{port}" # where the others reach it; between machines a host name'
    else:
        yield f'address = "{section}.example.org:{port}" # {FILL_IN} where the others reach it'


def _terms(plan: Plan) -> Iterator[str]:
    alone = "" if "secondary" in plan.own else f" # {FILL_IN} the partner's name, here and in the next header"
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
        yield f"# {FILL_IN} ranges that hold the values of both tables; these are of one table alone, with room around."
    yield "fields = ["
    for described in Schema(plan.fields).to_dict()["fields"]:
        yield f"  {_field(described)},"
    yield "]"


def _field(described: dict[str, Any]) -> str:
    """A field on one line; dates as TOML has them, whole numbers without a point."""
    encoding = described["encoding"]
    dates = encoding["kind"] == "date"
    settings = [
        f"{name} = {toml(_short(value), date=dates and name in ('low', 'high'))}" for name, value in encoding.items()
    ]
    return f"{{ column = {toml(described['column'])}, encoding = {{ {', '.join(settings)} }} }}"


def _short(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value


_WHO = {
    "coordinator": "the coordinator: it compares encoded identifiers and has neither table nor key",
    "primary": "the primary: it has the label and learns from the partner's records",
    "secondary": "a secondary: it lets the primary learn from its records, under its own conditions",
}


def _party(plan: Plan, role: str, folder: Path) -> Iterator[str]:
    name = plan.names()[role]
    yield f"#:schema ./schemas/{FILES['party']}"
    yield f"# {name}, {_WHO[role]}. Nobody else sees this file."
    yield f"name = {toml(name)}"
    yield f"role = {toml(role)}"
    yield f"folder = {toml(f'{name}-run')} # approvals, runs, models and the audit log"
    yield "\n[tls] # made by `fedsim certs`; not needed while all parties run in one process"
    yield f'authority = "{CERTS}/ca.pem"'
    yield f'certificate = "{CERTS}/{role}-{name}.pem"'
    yield f'key = "{CERTS}/{role}-{name}.key"'
    own = plan.own.get(role)
    if own:
        yield from _table(plan, role, own, folder)


def _table(plan: Plan, role: str, own: Own, folder: Path) -> Iterator[str]:
    yield "\n[data]"
    yield from _source(own.source, folder)
    if own.separator:
        yield f"separator = {toml(own.separator)}"
    if own.missing:
        yield f"missing = {toml(own.missing)} # words that stand where nothing is known"
    renamed = {agreed: column for agreed, column in own.identifiers.items() if agreed != column}
    if renamed:
        yield "\n[identifiers] # agreed names and the own columns behind them"
        yield from (toml({agreed: column})[2:-2] for agreed, column in renamed.items())
    yield from _features(own.learning)
    if role == "primary":
        yield "\n[label]"
        yield f"column = {toml(plan.label.word if plan.label else '')} # {plan.label.reason if plan.label else FILL_IN}"
    yield "\n[linkage]"
    yield f"key = {toml(KEY)} # the same at primary and secondary, never at the coordinator"
    if role == "secondary":
        yield from _policy(plan, own)


def _features(learning: Learning) -> Iterator[str]:
    if learning.dropped or learning.dates or learning.linking:
        yield "\n[features]"
    if learning.linking:
        yield "# What links is learnt from, too: it stays here, and in our experiments it told more than many partners."
        yield f"columns = {toml((*learning.columns, *learning.linking))}"
        yield from (f"# left out: {toml(name)}, {reason}" for name, reason in learning.dropped)
    elif learning.dropped:
        yield "drop = ["
        yield from (f"  {toml(name)}, # {reason}" for name, reason in learning.dropped)
        yield "]"
    if learning.dates:
        yield f"kinds = {toml(dict.fromkeys(learning.dates, 'date'))}"


def _policy(plan: Plan, own: Own) -> Iterator[str]:
    yield "\n[policy] # what this party demands of every job; `fedsim explain policy` lists more"
    if plan.tau:
        yield f"max_tau = {plan.tau:g} # jobs with less noise are refused"
    columns = (*own.identifiers.values(), *own.learning.columns)
    yield f"columns = {toml(columns)} # no other column may be used"


def _source(source: Source, folder: Path) -> Iterator[str]:
    if isinstance(source, Path):
        yield f"file = {toml(beside(source, folder))}"
        return
    yield f"url = {toml(_url(source, folder))}"
    yield f"table = {toml(source.table)}"
    if not source.file:
        yield '# password_file = "password" # or PGPASSWORD, or ~/.pgpass; a password in a URL is not written here'


def _url(source: SqlTable, folder: Path) -> str:
    """The URL as the party file needs it: a file beside it, a server without password."""
    return f"sqlite:///{quote(beside(source.file, folder))}" if source.file else source.without_password()


def beside(path: Path, folder: Path) -> str:
    """A path as seen from a folder; an absolute one where that is far away.

    >>> beside(Path("flats.csv"), Path("job")), beside(Path("/data/flats.csv"), Path("/home/ann/work/job"))
    ('../flats.csv', '/data/flats.csv')
    """
    seen = os.path.relpath(path.absolute(), folder.absolute())
    return str(path.absolute()) if Path(seen).parts.count("..") > DEEPEST else seen


def party_names(sources: Mapping[str, Source]) -> dict[str, str]:
    """A name for every party by its role, after its table where that is at hand; coordinator first.

    >>> party_names({"primary": Path("Flats 2020.csv.gz")})
    {'coordinator': 'notary', 'primary': 'flats-2020', 'secondary': 'partner'}
    """
    found = {"coordinator": COORDINATOR, "primary": "primary", "secondary": "partner"}
    for role, source in sources.items():
        stem = source.stem if isinstance(source, SqlTable) else source.name.partition(".")[0]
        name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:LONGEST].strip("-")
        found[role] = name if name and name not in (*found.values(), "job") else role
    return found
