"""What the demo says: a line for each phase as it ends, who saw what, and what the partner is worth."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fedsim.cli.demo_folder import Scene
from fedsim.cli.demo_parties import progress_of
from fedsim.experiment.ladder import PLACEBO
from fedsim.party.ledger_file import read_ledger
from fedsim.party.run_progress import DONE
from fedsim.party.run_record import RunRecord
from fedsim.report.words import count, duration, measure, size

WIDTH, NAMES = 110, 10  # of a line, and of the first words in it
SETTLED = 1.5  # seconds after which a party has written down what the phase before cost
UNIT = "thousand S$"
TOLD = ("solo", "solo-identifiers", "top1sim", "avgsim", "fedsim", "fedsim-identifiers", PLACEBO)
BEST = {
    "alone": "the best alone, chosen by the validation records",
    "together": "the best with the partner, chosen likewise",
}
SAW = {
    "notary": "filters of both tables and no key to read them; no feature, no label",
    "city": "noisy similarities and pseudonyms of rentals, and what their network makes of them; no rental",
    "rentals": "which of its own rows are asked for, and gradients; no flat, no price, no similarity",
}


@dataclass
class Teller:
    """Says what was done and how long it took, or nothing."""

    quiet: bool
    started: float = field(default_factory=time.perf_counter)

    def say(self, words: str = "") -> None:
        """Print a line, or two where it is long."""
        further = " " * (len("  ") + NAMES) if words.startswith("  ") else "  "
        wrapper = textwrap.TextWrapper(
            WIDTH, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
        )  # paths stay whole
        for line in wrapper.wrap(words) or [""]:
            if not self.quiet:
                typer.echo(line)

    def phase(self, name: str, words: str, seconds: float, n_bytes: int = 0) -> None:
        """One line about a phase that has ended."""
        cost = f"{duration(seconds)}, {size(n_bytes)}" if n_bytes else duration(seconds)
        self.say(f"  {name:<{NAMES}}{words} ({cost})")

    @contextmanager
    def bar(self, name: str) -> Iterator[Callable[[int, int], None]]:
        """A bar on a terminal, nothing anywhere else; moved by ``(done, total)``."""
        console = Console(stderr=True)
        columns = TextColumn(f"  {name:<{NAMES}}"), BarColumn(), TimeElapsedColumn()
        hidden = self.quiet or not console.is_terminal
        with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
            task = progress.add_task(name, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)


@dataclass(eq=False)
class Told:
    """Tells of a phase as soon as it is over."""

    scene: Scene
    teller: Teller
    found: dict[str, Any] = field(default_factory=dict)
    lines: int = 0

    def watch(self, found: dict[str, Any], move: Callable[[int, int], None]) -> None:
        """Look at what the primary wrote last."""
        self.found = found or self.found
        if self.lines == 0 and self.seconds("link"):
            words = "notary, city and rentals as three processes, mutual TLS on 127.0.0.1"
            self._tell("start", words, self.seconds("join"), 0)
        if self.lines == 1 and (self.seconds("train") > SETTLED or self.found["state"] == DONE):
            terms = self.scene.job.secondaries["rentals"]
            words = f"the notary found {terms.k} similar rentals for every flat; noise keeps tau at {terms.tau:g}"
            self._tell("link", words, self.seconds("link"), self.bytes("link"))
        training = self.found.get("training")
        if training:
            move(training["steps"], training["epochs"] * training["steps_per_epoch"])

    def seconds(self, phase: str) -> float:
        """How long the primary spent on a phase so far."""
        return float(sum(one["seconds"] for one in self.found.get("phases", ()) if one["name"] == phase))

    def bytes(self, phase: str) -> int:
        """What crossed between all parties; each frame was counted at both its ends."""
        written = [progress_of(self.scene.run_of(name)) for name in self.scene.parties]
        entries = [entry for found in written for entry in found.get("ledger", ()) if entry["phase"] == phase]
        return int(sum(entry["bytes"] for entry in entries)) // 2

    def _tell(self, name: str, words: str, seconds: float, n_bytes: int) -> None:
        self.lines += 1
        self.teller.phase(name, words, seconds, n_bytes)


def say_who_saw_what(scene: Scene, teller: Teller) -> None:
    """What came to each party, in words and by its own ledger."""
    teller.say("Who saw what of the others:")
    for name, words in SAW.items():
        received = _received(scene, name)
        teller.say(f"  {name:<{NAMES}}{words}; {size(sum(received.values()))} came in, most of it {_most(received)}")


def _received(scene: Scene, name: str) -> Counter[str]:
    """Bytes that came to a party, by kind of message, by its own ledger."""
    own, found = str(scene.parties[name].party), Counter[str]()
    for entry in read_ledger(scene.run_of(name)):
        if entry.receiver == own:
            found[entry.kind] += entry.bytes
    return found


def _most(received: Counter[str]) -> str:
    return " and ".join(kind for kind, _ in received.most_common(2))


def say_worth(scene: Scene, record: RunRecord, ladder: dict[str, Any], teller: Teller) -> None:
    """The rungs one needs to follow the sentence, the sentence, and the truth."""
    teller.say(
        f"What the partner is worth ({ladder['metric']} in {UNIT} on the same {count(ladder['records'])} test flats, "
        "less is better; own identifiers: the place as a feature):"
    )
    for rung in ladder["rungs"]:
        remarks = list(_remarks(rung["key"], ladder["chosen"], record))
        if rung["key"] in TOLD or remarks:
            teller.say(f"  {rung['name']:<44}{rung['mean']:>6.1f}   {', '.join(remarks)}".rstrip())
    teller.say(ladder["worth"])
    truth = scene.town.truth.worth("rentals")
    teller.say(f"This city was generated so that the best that can be had from the rentals is {truth:.3g} {UNIT}.")


def _remarks(key: str, chosen: Mapping[str, Sequence[str]], record: RunRecord) -> Iterator[str]:
    """What a rung is there for."""
    if key == PLACEBO:
        yield "rentals that say nothing"
    if key == record.method:
        yield f"the model above, trained anew (there {measure(record.metrics['test']['rmse'])})"
    yield from (words for side, words in BEST.items() if key in chosen[side])
