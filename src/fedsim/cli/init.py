"""Profile the tables, propose links and a learning task, and write job and party files (``fedsim init``)."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.cli.options import parse_names
from fedsim.config.schema import SCHEMA_FILES, read_schema_text
from fedsim.config.toml_file import shorten
from fedsim.data.profile import TableProfile, profile_table
from fedsim.data.sql import TableSource, parse_source
from fedsim.data.table_reader import detect_separator, read_table
from fedsim.errors import FileError, SettingError, nearest_word
from fedsim.linkage.encoding import Key
from fedsim.report.formatting import pluralise
from fedsim.storage.files import atomic_write
from fedsim.wizard.file_templates import KEY_FILE, SetupPlan, TablePlan, propose_party_names, render_job, render_party
from fedsim.wizard.learning_proposal import (
    Guess,
    check_label_choice,
    column_profile,
    guess_label,
    guess_split,
    guess_task,
    propose_batch_size,
    propose_features,
)
from fedsim.wizard.linkage_proposal import (
    DEFAULT_TAU,
    LinkageProposal,
    TableProfiles,
    guess_pairs,
    pairs_from_names,
    propose_k,
    propose_linkage,
)

# Where ``fedsim init`` writes, what it never replaces, and which commands come next


JOB_FILE, SCHEMA_FOLDER = "job.toml", "schemas"


@dataclass(frozen=True)
class InitFiles:
    """The files to write: the job, and those of the parties whose tables are at hand; with both, the coordinator's."""

    folder: Path
    parties: Mapping[str, str]
    at_hand: frozenset[str]

    @property
    def roles(self) -> list[str]:
        """Roles whose party files are written, in the order in which they start."""
        return [role for role in self.parties if role in self.at_hand or len(self.at_hand) == 2]

    def file_of(self, role: str) -> str:
        """The name of a party's file."""
        return f"{self.parties[role]}.toml"

    def check(self, *, force: bool) -> None:
        """Refuse to replace anything, and a folder that cannot be written."""
        nearest = next(path for path in (self.folder.absolute(), *self.folder.absolute().parents) if path.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK):
            raise FileError(f"{nearest} is no folder that this user may write; choose another with --out")
        there = [name for name in (JOB_FILE, *map(self.file_of, self.roles)) if (self.folder / name).exists()]
        if there and not force:
            raise FileError(
                f"{', '.join(there)} in {self.folder.absolute()} would be replaced; say --force or another --out"
            )

    def write(self, plan: SetupPlan) -> list[str]:
        """Write everything; a key that is there is kept, for it may be the only copy. Returns what was written."""
        texts = {JOB_FILE: render_job(plan)}
        texts |= {self.file_of(role): render_party(plan, role, self.folder) for role in self.roles}
        texts |= {f"{SCHEMA_FOLDER}/{SCHEMA_FILES[name]}": read_schema_text(name) for name in SCHEMA_FILES}
        written = [JOB_FILE, *map(self.file_of, self.roles), f"{SCHEMA_FOLDER}/"]
        with create_folder(self.folder / SCHEMA_FOLDER), ExitStack() as together:
            for name, text in texts.items():
                part = together.enter_context(atomic_write(self.folder / name))
                part.write_text(text, encoding="utf-8")
            if "primary" in self.at_hand and not (self.folder / KEY_FILE).exists():
                Key.generate().write(self.folder / KEY_FILE)
                written.append(KEY_FILE)
        return written


@contextmanager
def create_folder(folder: Path) -> Iterator[None]:
    """The folder and those above it, made where they are not there; they go again where the block is broken off."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or "the disk refused"
        raise FileError(f"the folder {folder} cannot be written ({reason}); choose another --out") from error
    try:
        yield
    except BaseException:
        for path in new:
            with suppress(OSError):
                path.rmdir()
        raise


def next_step_lines(plan: SetupPlan, targets: InitFiles) -> Iterator[str]:
    """The commands that follow, as one would type them."""
    files = [targets.file_of(role) for role in targets.roles]
    names = plan.names()
    certs = " ".join(f"--{role} {name}" for role, name in names.items())
    here = [] if targets.folder == Path() else [f"cd {shlex.quote(str(targets.folder))}"]
    if plan.whole:
        yield "\nNext, to try it, all parties in one process:"
        tried = [f"fedsim approve {JOB_FILE} {file} --yes" for file in files]
        yield from _command_lines([*here, *tried, f"fedsim train {JOB_FILE} {' '.join(files)}"])
        yield "\nThen, each party on its own machine (fedsim check tells what is missing):"
        yield from _command_lines([f"fedsim certs {certs}", f"fedsim check {JOB_FILE} {files[-1]}"])
        return
    yield f"\nNext: fill in what is marked in {JOB_FILE}, agree on it with the other side, then"
    copy = (
        f"# get {KEY_FILE} from the primary, over a safe way"
        if "secondary" in plan.own
        else f"# give {KEY_FILE} to the secondary, over a safe way; never to the coordinator"
    )
    yield from _command_lines(
        [*here, copy, f"fedsim check {JOB_FILE} {files[0]}", f"fedsim approve {JOB_FILE} {files[0]}"]
    )


def _command_lines(lines: list[str]) -> Iterator[str]:
    yield from (f"  {line}" for line in lines)


# What ``fedsim init`` proposes, as lines for people and as one object for programs


MAX_LISTED, MAX_LINE_LENGTH = 8, 10_000
PlanSummary = dict[str, Any]


def plan_lines(plan: SetupPlan, linked: LinkageProposal, notes: Sequence[str]) -> Iterator[str]:
    """How the parties link, what is learnt from what, and why; warnings last."""
    for pair, field in zip(linked.pairs, linked.fields, strict=True):
        both = " = ".join(dict.fromkeys(name for name in (pair.primary, pair.secondary) if name))
        reach = f", threshold {field.encoding.threshold:g}" if hasattr(field.encoding, "threshold") else ""
        yield format_line("link by", f"{both} ({field.encoding.KIND}, {field.encoding.bits:,} bits{reach})")
    for name, guess in (("label", plan.label), ("task", plan.task), ("split", plan.split)):
        if guess:
            yield format_line(name, f"{guess.word}, {guess.reason}")
    noise = f"tau {plan.tau:g}" if plan.tau else "none"
    yield format_line("partners", f"{plan.k} per record; noise on their similarities: {noise}")
    for role, own in plan.own.items():
        used, dropped = own.learning.columns + own.learning.linking, [name for name, _ in own.learning.dropped]
        left_out = f"; left out: {_shorten_list(dropped)}" if dropped else ""
        yield format_line("features", f"{plan.names()[role]}: {_shorten_list(used)}{left_out}")
    for note in notes:
        yield format_line("warning", note)


def plan_as_dict(plan: SetupPlan, linked: LinkageProposal, notes: Sequence[str]) -> PlanSummary:
    """The same without reasons."""
    fields = zip(linked.pairs, linked.fields, strict=True)
    return {
        "parties": plan.names(),
        "link_by": [{"primary": p.primary, "secondary": p.secondary, "kind": f.encoding.KIND} for p, f in fields],
        "label": plan.label.word if plan.label else None,
        "task": plan.task.word if plan.task else None,
        "split": plan.split.word,
        "k": plan.k,
        "tau": plan.tau,
        "batch_size": plan.batch,
        "features": {role: [*own.learning.columns, *own.learning.linking] for role, own in plan.own.items()},
        "left_out": {role: dict(own.learning.dropped) for role, own in plan.own.items()},
        "warnings": list(notes),
    }


def _shorten_list(columns: Sequence[str]) -> str:
    more = f" and {len(columns) - MAX_LISTED} more" if len(columns) > MAX_LISTED else ""
    return ", ".join(columns[:MAX_LISTED]) + more


def format_line(name: str, value: str) -> str:
    """Names of columns and files cannot steer a terminal."""
    return shorten(f"{name:<12} {value}", MAX_LINE_LENGTH)


# The work behind ``fedsim init``: look, guess, ask; :mod:`fedsim.cli.init` writes


PrintLine = Callable[[str], None]
TASK_NAMES = ("regression", "classification")
USER_CHOICE = "as asked"


@dataclass(frozen=True)
class InitRequest:
    """What the user said; ``None`` and empty lists are guessed or asked for."""

    primary: str | None
    secondary: str | None
    on: list[str]
    on_secondary: list[str]
    label: str | None
    task: str | None
    k: int | None
    tau: float | None
    epochs: int | None
    separators: Mapping[str, str | None]


@dataclass(frozen=True)
class Prompter:
    """Turns a guess into an answer: that of the owner, or the guess itself."""

    answer: Callable[[str, str], str]

    def about(self, question: str, guess: Guess) -> Guess:
        """The guess, or what the owner says instead."""
        said = self.answer(question, guess.word)
        return guess if said == guess.word else Guess(said, USER_CHOICE)


@dataclass(frozen=True, eq=False)
class InitTable:
    """A table at hand: where it is, what stands between its cells if that is unusual, and what it looks like."""

    source: TableSource
    separator: str | None
    look: TableProfile


@dataclass(frozen=True)
class InitGoal:
    """What is learnt; nothing is known of it where the primary's table is not at hand."""

    label: Guess | None
    task: Guess | None
    split: Guess
    notes: tuple[str, ...] = ()


def run_init(wishes: InitRequest, folder: Path, asker: Prompter, *, force: bool, say: PrintLine) -> PlanSummary:
    """Write the files and hand back what they say; nothing is written before all is known, or replaced unasked."""
    words = {"primary": wishes.primary, "secondary": wishes.secondary}
    sources = {role: parse_source(word) for role, word in words.items() if word}
    if not sources:
        raise SettingError("no table named; give --primary, --secondary or both")
    targets = InitFiles(folder, propose_party_names(sources), frozenset(sources))
    targets.check(force=force)
    seen = {role: _profile_table(source, wishes.separators[role]) for role, source in sources.items()}
    for table in seen.values():
        say(format_line(table.look.name, _format_table_size(table)))
    tables = TableProfiles(*(seen[role].look if role in seen else None for role in words))
    linked = _propose_linkage(tables, wishes, asker)
    goal = _propose_goal(tables.primary, linked, wishes, asker)
    plan = _build_plan(tables, linked, goal, wishes, seen)
    notes = (*linked.notes, *goal.notes)
    for line in plan_lines(plan, linked, notes):
        say(line)
    written = targets.write(plan)
    say(format_line("written", ", ".join(written)))
    for line in next_step_lines(plan, targets):
        say(line)
    return plan_as_dict(plan, linked, notes) | {"folder": str(folder), "files": written}


def _profile_table(source: TableSource, separator: str | None) -> InitTable:
    found = detect_separator(source) if isinstance(source, Path) and separator is None else separator
    name = source.name if isinstance(source, Path) else str(source)
    return InitTable(source, found, profile_table(read_table(source, separator=found), name))


def _propose_linkage(tables: TableProfiles, wishes: InitRequest, asker: Prompter) -> LinkageProposal:
    k = propose_k(tables, wishes.k)
    if wishes.on:
        return propose_linkage(tables, pairs_from_names(tables, wishes.on, wishes.on_secondary or wishes.on), k)
    guessed = guess_pairs(tables)
    guess = Guess(",".join(pair.primary or pair.secondary or "" for pair in guessed), "")
    said = asker.about("Columns that link, between commas", guess)
    if said is guess:
        return propose_linkage(tables, guessed, k)
    known = {pair.primary: pair.secondary for pair in guessed}
    wanted = parse_names(said.word)
    theirs = [known.get(name) or name for name in wanted]
    return propose_linkage(tables, pairs_from_names(tables, wanted, _secondary_columns(tables, theirs, asker)), k)


def _secondary_columns(tables: TableProfiles, theirs: list[str], asker: Prompter) -> list[str]:
    """What the secondary calls these columns; asked for where one is not among its own."""
    there = tables.secondary
    if tables.primary is None or there is None or set(theirs) <= set(there.columns):
        return theirs
    return parse_names(asker.answer(f"The same columns in {there.name}, between commas", ""))


def _propose_goal(
    primary: TableProfile | None, linked: LinkageProposal, wishes: InitRequest, asker: Prompter
) -> InitGoal:
    task = None if wishes.task is None else _check_task(Guess(wishes.task, USER_CHOICE))
    if primary is None:
        return InitGoal(None, task, Guess("random", "or group, which keeps records with equal identifiers on one side"))
    taken = list(linked.columns_of("primary").values())
    label = _choose_label(primary, taken, wishes, asker)
    notes = check_label_choice(primary, label.word, taken)
    task = task or _check_task(asker.about("Task", guess_task(column_profile(primary, label.word))))
    return InitGoal(label, task, guess_split(primary, taken), tuple(notes))


def _choose_label(primary: TableProfile, taken: list[str], wishes: InitRequest, asker: Prompter) -> Guess:
    if wishes.label:
        return Guess(wishes.label, USER_CHOICE)
    said = asker.about("Column to predict", guess_label(primary, taken) or Guess("", ""))
    if not said.word:
        raise SettingError(f"no column of {primary.name} looks like a label; name one with --label")
    return said


def _check_task(task: Guess) -> Guess:
    if task.word not in TASK_NAMES:
        near = nearest_word(task.word, TASK_NAMES)
        hint = f"did you mean '{near}'?" if near else f"choose from {', '.join(TASK_NAMES)}"
        raise SettingError(f"task '{task.word[:60]}' is unknown; {hint}")
    return task


def _build_plan(
    tables: TableProfiles, linked: LinkageProposal, goal: InitGoal, wishes: InitRequest, seen: Mapping[str, InitTable]
) -> SetupPlan:
    named = propose_party_names({role: table.source for role, table in seen.items()})
    return SetupPlan(
        primary=named["primary"],
        secondary=named["secondary"],
        fields=linked.fields,
        k=propose_k(tables, wishes.k),
        tau=DEFAULT_TAU if wishes.tau is None else wishes.tau or None,
        task=goal.task,
        split=goal.split,
        label=goal.label,
        epochs=wishes.epochs,
        batch=propose_batch_size(tables.primary.rows) if tables.primary else None,
        own={role: _party_proposal(role, table, linked, goal) for role, table in seen.items()},
    )


def _party_proposal(role: str, table: InitTable, linked: LinkageProposal, goal: InitGoal) -> TablePlan:
    identifiers = linked.columns_of(role)
    label = [goal.label.word] if goal.label and role == "primary" else []
    # Only the primary's: what a secondary's network makes of a place would tell it to the primary.
    also = list(identifiers.values()) if role == "primary" else []
    learnt = propose_features(table.look, [*identifiers.values(), *label], also)
    return TablePlan(table.source, table.separator, table.look.gap_words, identifiers, learnt)


def _format_table_size(table: InitTable) -> str:
    split = f", split at {table.separator!r}" if table.separator else ""
    return f"{pluralise(table.look.rows, 'record')}, {pluralise(len(table.look.columns), 'column')}{split}"
