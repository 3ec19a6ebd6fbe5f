"""Generate tables and job files, run three parties as processes and report the partner's contribution (``fedsim demo``)."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fedsim.cli.compare import training_settings_of
from fedsim.cli.exit_codes import STOP_SIGNALS
from fedsim.config.job import Job, read_job
from fedsim.config.party_file import PartyFile, read_party_file
from fedsim.contribution.job_ladder import JobCases
from fedsim.contribution.ladder import FEDSIM_PLACEBO, train_ladder
from fedsim.contribution.result_store import ResultStore
from fedsim.data.synthetic_city import KnownCity, generate_city
from fedsim.data.table_reader import read_table
from fedsim.errors import FileError, PeerError
from fedsim.linkage.encoding import Key
from fedsim.protocol.certificates import issue_certificates
from fedsim.report.formatting import format_bytes, format_count, format_duration, format_number
from fedsim.report.ladder import LADDER_FILE as LADDER
from fedsim.report.run_report import write_report
from fedsim.runs.approval import approve
from fedsim.runs.progress import DONE, PROGRESS_FILE
from fedsim.runs.record import RunRecord, read_run_record
from fedsim.runs.run_folder import read_ledger, run_path
from fedsim.storage.files import atomic_write

# The folder of the demo: tables, job and party files, key, certificates and approvals, as users would make them


FLATS = 1_500
PARTY_NAMES = ("notary", "city", "rentals")
PORT_PLACEHOLDERS = ("COORDINATOR_PORT", "PRIMARY_PORT")
MARKER_FILE = ".fedsim-demo"


@dataclass(frozen=True, eq=False)
class DemoSetup:
    """Everything in place, and nothing has run yet."""

    folder: Path
    town: KnownCity
    job: Job
    parties: dict[str, PartyFile]

    def run_of(self, name: str) -> Path:
        """The run folder of a party."""
        return run_path(self.job, self.parties[name])


def create_demo_folder(folder: Path) -> None:
    """An empty folder; an earlier demo gives way, anything else does not."""
    try:
        if (folder / MARKER_FILE).is_file():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise FileError(f"the folder {folder} is not empty and holds no demo; choose another with --out")
        (folder / MARKER_FILE).touch()
    except OSError as error:
        raise FileError(f"the folder {folder} cannot be made ({error.strerror}); choose another with --out") from error


def write_tables(folder: Path, seed: int) -> KnownCity:
    """Flats with prices for one, rentals for the other; they share no key, only places."""
    town = generate_city(np.random.default_rng(seed), flats=FLATS)
    for name, table in (("flats", town.flats), ("rentals", town.rentals)):
        with atomic_write(folder / f"{name}.csv") as part:
            table.write_csv(part)
    return town


def write_agreement(folder: Path, town: KnownCity) -> DemoSetup:
    """Job and party files on free ports, the key of the two that link, certificates, and each owner's approval."""
    ports = free_ports(len(PORT_PLACEHOLDERS))
    for name in ("job", *PARTY_NAMES):
        text = files("fedsim.cli").joinpath("demo_files", f"{name}.toml").read_text(encoding="utf-8")
        for word, port in zip(PORT_PLACEHOLDERS, ports, strict=True):
            text = text.replace(word, str(port))
        with atomic_write(folder / f"{name}.toml") as part:
            part.write_text(text, encoding="utf-8")
    job, now = read_job(folder / "job.toml"), datetime.now(UTC)
    Key.generate().write(folder / "linkage.key")
    issue_certificates(folder / "certs", job.parties, now)
    parties = {name: read_party_file(folder / f"{name}.toml") for name in PARTY_NAMES}
    for own in parties.values():
        header = read_table(own.data.source).columns if own.data else None
        approve(job, own, header, by="fedsim demo", time=now)
    return DemoSetup(folder, town, job, parties)


def free_ports(count: int) -> Sequence[int]:
    """Ports of this machine that nobody uses just now."""
    doors = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [door.getsockname()[1] for door in doors]
    for door in doors:
        door.close()
    return ports


# The parties of the demo as processes of their own, watched through the files they write


TIMEOUT_SECONDS = 240.0  # seconds until the parties are stopped
POLL_SECONDS = 0.2
STOP_SECONDS = 5.0  # seconds in which those that are stopped may end by themselves
Process = subprocess.Popen[bytes]
ProgressListener = Callable[[dict[str, Any]], None]


def run_parties(scene: DemoSetup, watch: ProgressListener) -> None:
    """Start all parties and stay until they have ended well; ``watch`` is told what the primary wrote last."""
    running: dict[str, Process] = {}
    with _record_signals() as signals:
        try:
            for name in scene.parties:
                running[name] = _start(scene, name)
            _wait(scene, running, watch, signals)
        finally:
            _stop(running)


@contextmanager
def _record_signals() -> Iterator[list[int]]:
    """Note what would end this process: raised where it arrives, it could lose a party that has just been started."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted  # signals come to the main thread alone
        return
    before = {number: signal.signal(number, lambda seen, _: noted.append(seen)) for number in STOP_SIGNALS}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def read_progress(folder: Path) -> dict[str, Any]:
    """What a party wrote last; nothing before its first word."""
    try:
        return dict(json.loads((folder / PROGRESS_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _start(scene: DemoSetup, name: str) -> Process:
    words = [sys.executable, "-m", "fedsim", "party", "job.toml", f"{name}.toml"]
    with _log_path(scene, name).open("wb") as out:
        return subprocess.Popen(words, cwd=scene.folder, stdout=out, stderr=subprocess.STDOUT)  # noqa: S603


def _wait(scene: DemoSetup, running: Mapping[str, Process], watch: ProgressListener, signals: Sequence[int]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        ends = {name: process.poll() for name, process in running.items()}
        if signals:
            raise KeyboardInterrupt
        failed = [name for name, end in ends.items() if end]
        if failed:
            raise PeerError(_failure_message(scene, failed[0]))
        if None not in ends.values():
            return
        if time.monotonic() > deadline:
            raise PeerError(
                f"the parties were not done after {TIMEOUT_SECONDS:.0f} seconds; look at {_log_path(scene, 'city')}"
            )
        watch(read_progress(scene.run_of("city")))
        time.sleep(POLL_SECONDS)


def _failure_message(scene: DemoSetup, name: str) -> str:
    lines = _log_path(scene, name).read_text(encoding="utf-8", errors="replace").splitlines()
    said = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1] if lines else "nothing")
    return f"{name} failed and said '{said.removeprefix('error: ')}'; all of it is in {_log_path(scene, name)}"


def _log_path(scene: DemoSetup, name: str) -> Path:
    return scene.folder / f"{name}.log"


def _stop(running: Mapping[str, Process]) -> None:
    for process in running.values():
        if process.poll() is None:
            process.terminate()
    for process in running.values():
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# What the demo says: a line for each phase as it ends, who saw what, and what the partner is worth


WIDTH, NAME_WIDTH = 110, 10  # of a line, and of the first words in it
SETTLE_SECONDS = 1.5  # seconds after which a party has written down what the phase before cost
UNIT = "thousand S$"
SHOWN_RUNGS = ("solo", "solo-identifiers", "top1sim", "avgsim", "fedsim", "fedsim-identifiers", FEDSIM_PLACEBO)
BEST_REMARKS = {
    "alone": "the best alone, chosen by the validation records",
    "together": "the best with the partner, chosen likewise",
}
DISCLOSURES = {
    "notary": "filters of both tables and no key to read them; no feature, no label",
    "city": "noisy similarities and pseudonyms of rentals, and what their network makes of them; no rental",
    "rentals": "which of its own rows are asked for, and gradients; no flat, no price, no similarity",
}


@dataclass
class DemoPrinter:
    """Says what was done and how long it took, or nothing."""

    quiet: bool
    started: float = field(default_factory=time.perf_counter)

    def say(self, words: str = "") -> None:
        """Print a line, or two where it is long."""
        further = " " * (len("  ") + NAME_WIDTH) if words.startswith("  ") else "  "
        wrapper = textwrap.TextWrapper(
            WIDTH, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
        )  # paths stay whole
        for line in wrapper.wrap(words) or [""]:
            if not self.quiet:
                typer.echo(line)

    def phase(self, name: str, words: str, seconds: float, n_bytes: int = 0) -> None:
        """One line about a phase that has ended."""
        cost = f"{format_duration(seconds)}, {format_bytes(n_bytes)}" if n_bytes else format_duration(seconds)
        self.say(f"  {name:<{NAME_WIDTH}}{words} ({cost})")

    @contextmanager
    def bar(self, name: str) -> Iterator[Callable[[int, int], None]]:
        """A bar on a terminal, nothing anywhere else; moved by ``(done, total)``."""
        console = Console(stderr=True)
        columns = TextColumn(f"  {name:<{NAME_WIDTH}}"), BarColumn(), TimeElapsedColumn()
        hidden = self.quiet or not console.is_terminal
        with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
            task = progress.add_task(name, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)


@dataclass(eq=False)
class PhasePrinter:
    """Tells of a phase as soon as it is over."""

    scene: DemoSetup
    teller: DemoPrinter
    found: dict[str, Any] = field(default_factory=dict)
    lines: int = 0

    def watch(self, found: dict[str, Any], move: Callable[[int, int], None]) -> None:
        """Look at what the primary wrote last."""
        self.found = found or self.found
        if self.lines == 0 and self.seconds("link"):
            words = "notary, city and rentals as three processes, mutual TLS on 127.0.0.1"
            self._tell("start", words, self.seconds("join"), 0)
        if self.lines == 1 and (self.seconds("train") > SETTLE_SECONDS or self.found["state"] == DONE):
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
        written = [read_progress(self.scene.run_of(name)) for name in self.scene.parties]
        entries = [entry for found in written for entry in found.get("ledger", ()) if entry["phase"] == phase]
        return int(sum(entry["bytes"] for entry in entries)) // 2

    def _tell(self, name: str, words: str, seconds: float, n_bytes: int) -> None:
        self.lines += 1
        self.teller.phase(name, words, seconds, n_bytes)


def print_disclosures(scene: DemoSetup, teller: DemoPrinter) -> None:
    """What came to each party, in words and by its own ledger."""
    teller.say("Who saw what of the others:")
    for name, words in DISCLOSURES.items():
        received = _received_bytes(scene, name)
        teller.say(
            f"  {name:<{NAME_WIDTH}}{words}; {format_bytes(sum(received.values()))} came in, most of it {_main_kinds(received)}"
        )


def _received_bytes(scene: DemoSetup, name: str) -> Counter[str]:
    """Bytes that came to a party, by kind of message, by its own ledger."""
    own, found = str(scene.parties[name].party), Counter[str]()
    for entry in read_ledger(scene.run_of(name)):
        if entry.receiver == own:
            found[entry.kind] += entry.bytes
    return found


def _main_kinds(received: Counter[str]) -> str:
    return " and ".join(kind for kind, _ in received.most_common(2))


def print_contribution(scene: DemoSetup, record: RunRecord, ladder: dict[str, Any], teller: DemoPrinter) -> None:
    """The rungs one needs to follow the sentence, the sentence, and the truth."""
    teller.say(
        f"What the partner is worth ({ladder['metric']} in {UNIT} on the same {format_count(ladder['records'])} test flats, "
        "less is better; own identifiers: the place as a feature):"
    )
    for rung in ladder["rungs"]:
        remarks = list(_rung_remarks(rung["key"], ladder["chosen"], record))
        if rung["key"] in SHOWN_RUNGS or remarks:
            teller.say(f"  {rung['name']:<44}{rung['mean']:>6.1f}   {', '.join(remarks)}".rstrip())
    teller.say(ladder["worth"])
    truth = scene.town.truth.worth("rentals")
    teller.say(f"This city was generated so that the best that can be had from the rentals is {truth:.3g} {UNIT}.")


def _rung_remarks(key: str, chosen: Mapping[str, Sequence[str]], record: RunRecord) -> Iterator[str]:
    """What a rung is there for."""
    if key == FEDSIM_PLACEBO:
        yield "rentals that say nothing"
    if key == record.method:
        yield f"the model above, trained anew (there {format_number(record.metrics['test']['rmse'])})"
    yield from (words for side, words in BEST_REMARKS.items() if key in chosen[side])


# The work behind ``fedsim demo``: tables, an agreement, three processes, a ladder, a report


DEMO_SPLIT = "group"


def run_demo(folder: Path, seed: int, *, quiet: bool, as_json: bool) -> None:
    """All of it in one folder; raises where anything fails."""
    teller = DemoPrinter(quiet or as_json)
    create_demo_folder(folder)
    teller.say("A city knows what its flats cost; another organisation has rentals. They share no key, only places.")
    scene = _prepare(folder, seed, teller)
    record = _train(scene, teller)
    ladder = _compare(scene, teller)
    page = write_report(scene.run_of("city"), mapped=scene.parties["city"])
    teller.say()
    print_disclosures(scene, teller)
    teller.say()
    print_contribution(scene, record, ladder, teller)
    teller.say()
    seconds = time.perf_counter() - teller.started
    teller.say(f"Done in {format_duration(seconds)}. The report, with charts of all this:")
    teller.say(f"  {page}")
    teller.say(
        f"Everything is in {folder}: tables, job and party files, certificates, logs, models. With your own tables:"
    )
    teller.say("  fedsim init    writes job and party files; then: fedsim check, fedsim compare, fedsim train")
    if as_json:
        found = {"folder": str(folder), "report": str(page), "seconds": seconds, "metrics": record.metrics}
        typer.echo(json.dumps({**found, "ladder": ladder, "truth": scene.town.truth.worth("rentals")}))


def _prepare(folder: Path, seed: int, teller: DemoPrinter) -> DemoSetup:
    began = time.perf_counter()
    town = write_tables(folder, seed)
    tables = f"flats.csv ({format_count(len(town.flats))} records) and rentals.csv ({format_count(len(town.rentals))})"
    teller.phase("tables", f"generated {tables}, of which the truth is known", time.perf_counter() - began)
    began = time.perf_counter()
    scene = write_agreement(folder, town)
    words = "one job file for all, a key for the two that link, certificates and approvals for three"
    teller.phase("agree", words, time.perf_counter() - began)
    return scene


def _train(scene: DemoSetup, teller: DemoPrinter) -> RunRecord:
    told = PhasePrinter(scene, teller)
    with teller.bar("train") as move:
        run_parties(scene, lambda found: told.watch(found, move))
    told.watch(read_progress(scene.run_of("city")), lambda done, total: None)
    record = read_run_record(scene.run_of("city"))
    epochs = f"FedSim, best of {len(record.history)} epochs: {record.best_epoch}"
    score = (
        f"rmse {format_number(record.metrics['test']['rmse'])} {UNIT} on {format_count(record.table.test)} test flats"
    )
    teller.phase("train", f"{epochs}; {score}", told.seconds("train") + told.seconds("explain"), told.bytes("train"))
    return record


def _compare(scene: DemoSetup, teller: DemoPrinter) -> dict[str, Any]:
    """Every rung once, under the split that keeps equal places together; what is trained lies in its own folder."""
    began, folder = time.perf_counter(), scene.folder / "compare"
    tables = JobCases.read(scene.job, list(scene.parties.values()), folder, UNIT)
    rungs = training_settings_of(scene.job).rungs()
    torch.set_num_threads(scene.job.training.threads)
    with teller.bar("compare") as move:
        done = iter(range(1, len(rungs) + 1))
        ladder = train_ladder(
            tables.cases(1, (DEMO_SPLIT,)), rungs, ResultStore(folder), lambda _: move(next(done), len(rungs))
        ).described()
    with atomic_write(scene.run_of("city") / LADDER) as part:
        part.write_text(json.dumps(ladder, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    words = f"{len(rungs)} rungs, each trained anew: alone, with the partner, with partners that cannot help"
    teller.phase("compare", words, time.perf_counter() - began)
    return ladder
