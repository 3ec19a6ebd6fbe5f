"""The work behind ``fedsim init``: look, guess, ask; :mod:`fedsim.cli.init_files` writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedsim.cli.init_files import Targets, next_steps
from fedsim.cli.init_telling import Told, line_of, plan_lines, plan_object
from fedsim.cli.options import names
from fedsim.data.looks import TableLook, look_at
from fedsim.data.readers import likely_separator, read_table
from fedsim.data.sql_source import Source, source_of
from fedsim.errors import SettingError, nearest_word
from fedsim.party.proposal import TAU, Linking, Tables, guessed_pairs, linking, named_pairs, partners
from fedsim.party.proposal_learning import (
    Guess,
    checked_label,
    guessed_label,
    guessed_split,
    guessed_task,
    learning,
    look_of,
    proposed_batch,
)
from fedsim.party.proposed_files import Own, Plan, party_names
from fedsim.report.words import many

Say = Callable[[str], None]
TASKS = ("regression", "classification")
ASKED = "as asked"


@dataclass(frozen=True)
class Wishes:
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
class Asker:
    """Turns a guess into an answer: that of the owner, or the guess itself."""

    answer: Callable[[str, str], str]

    def about(self, question: str, guess: Guess) -> Guess:
        """The guess, or what the owner says instead."""
        said = self.answer(question, guess.word)
        return guess if said == guess.word else Guess(said, ASKED)


@dataclass(frozen=True, eq=False)
class Seen:
    """A table at hand: where it is, what stands between its cells if that is unusual, and what it looks like."""

    source: Source
    separator: str | None
    look: TableLook


@dataclass(frozen=True)
class Goal:
    """What is learnt; nothing is known of it where the primary's table is not at hand."""

    label: Guess | None
    task: Guess | None
    split: Guess
    notes: tuple[str, ...] = ()


def run_init(wishes: Wishes, folder: Path, asker: Asker, *, force: bool, say: Say) -> Told:
    """Write the files and hand back what they say; nothing is written before all is known, or replaced unasked."""
    words = {"primary": wishes.primary, "secondary": wishes.secondary}
    sources = {role: source_of(word) for role, word in words.items() if word}
    if not sources:
        raise SettingError("no table named; give --primary, --secondary or both")
    targets = Targets(folder, party_names(sources), frozenset(sources))
    targets.check(force=force)
    seen = {role: _look(source, wishes.separators[role]) for role, source in sources.items()}
    for table in seen.values():
        say(line_of(table.look.name, _size_words(table)))
    tables = Tables(*(seen[role].look if role in seen else None for role in words))
    linked = _linking(tables, wishes, asker)
    goal = _goal(tables.primary, linked, wishes, asker)
    plan = _plan(tables, linked, goal, wishes, seen)
    notes = (*linked.notes, *goal.notes)
    for line in plan_lines(plan, linked, notes):
        say(line)
    written = targets.write(plan)
    say(line_of("written", ", ".join(written)))
    for line in next_steps(plan, targets):
        say(line)
    return plan_object(plan, linked, notes) | {"folder": str(folder), "files": written}


def _look(source: Source, separator: str | None) -> Seen:
    found = likely_separator(source) if isinstance(source, Path) and separator is None else separator
    name = source.name if isinstance(source, Path) else str(source)
    return Seen(source, found, look_at(read_table(source, separator=found), name))


def _linking(tables: Tables, wishes: Wishes, asker: Asker) -> Linking:
    k = partners(tables, wishes.k)
    if wishes.on:
        return linking(tables, named_pairs(tables, wishes.on, wishes.on_secondary or wishes.on), k)
    guessed = guessed_pairs(tables)
    guess = Guess(",".join(pair.primary or pair.secondary or "" for pair in guessed), "")
    said = asker.about("Columns that link, between commas", guess)
    if said is guess:
        return linking(tables, guessed, k)
    known = {pair.primary: pair.secondary for pair in guessed}
    wanted = names(said.word)
    theirs = [known.get(name) or name for name in wanted]
    return linking(tables, named_pairs(tables, wanted, _names_there(tables, theirs, asker)), k)


def _names_there(tables: Tables, theirs: list[str], asker: Asker) -> list[str]:
    """What the secondary calls these columns; asked for where one is not among its own."""
    there = tables.secondary
    if tables.primary is None or there is None or set(theirs) <= set(there.columns):
        return theirs
    return names(asker.answer(f"The same columns in {there.name}, between commas", ""))


def _goal(primary: TableLook | None, linked: Linking, wishes: Wishes, asker: Asker) -> Goal:
    task = None if wishes.task is None else _known_task(Guess(wishes.task, ASKED))
    if primary is None:
        return Goal(None, task, Guess("random", "or group, which keeps records with equal identifiers on one side"))
    taken = list(linked.columns_of("primary").values())
    label = _label(primary, taken, wishes, asker)
    notes = checked_label(primary, label.word, taken)
    task = task or _known_task(asker.about("Task", guessed_task(look_of(primary, label.word))))
    return Goal(label, task, guessed_split(primary, taken), tuple(notes))


def _label(primary: TableLook, taken: list[str], wishes: Wishes, asker: Asker) -> Guess:
    if wishes.label:
        return Guess(wishes.label, ASKED)
    said = asker.about("Column to predict", guessed_label(primary, taken) or Guess("", ""))
    if not said.word:
        raise SettingError(f"no column of {primary.name} looks like a label; name one with --label")
    return said


def _known_task(task: Guess) -> Guess:
    if task.word not in TASKS:
        near = nearest_word(task.word, TASKS)
        hint = f"did you mean '{near}'?" if near else f"choose from {', '.join(TASKS)}"
        raise SettingError(f"task '{task.word[:60]}' is unknown; {hint}")
    return task


def _plan(tables: Tables, linked: Linking, goal: Goal, wishes: Wishes, seen: Mapping[str, Seen]) -> Plan:
    named = party_names({role: table.source for role, table in seen.items()})
    return Plan(
        primary=named["primary"],
        secondary=named["secondary"],
        fields=linked.fields,
        k=partners(tables, wishes.k),
        tau=TAU if wishes.tau is None else wishes.tau or None,
        task=goal.task,
        split=goal.split,
        label=goal.label,
        epochs=wishes.epochs,
        batch=proposed_batch(tables.primary.rows) if tables.primary else None,
        own={role: _own(role, table, linked, goal) for role, table in seen.items()},
    )


def _own(role: str, table: Seen, linked: Linking, goal: Goal) -> Own:
    identifiers = linked.columns_of(role)
    label = [goal.label.word] if goal.label and role == "primary" else []
    # Only the primary's: what a secondary's network makes of a place would tell it to the primary.
    also = list(identifiers.values()) if role == "primary" else []
    learnt = learning(table.look, [*identifiers.values(), *label], also)
    return Own(table.source, table.separator, table.look.gap_words, identifiers, learnt)


def _size_words(table: Seen) -> str:
    split = f", split at {table.separator!r}" if table.separator else ""
    return f"{many(table.look.rows, 'record')}, {many(len(table.look.columns), 'column')}{split}"
