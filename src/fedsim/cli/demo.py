"""Run three parties on generated tables and report the partner's contribution (``fedsim demo``)."""

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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsim.cli import STOP_SIGNALS
from fedsim.cli.evaluation import training_settings_of
from fedsim.cli.options import OutputMode, print_json
from fedsim.cli.output import ProgressCallback, print_lines, progress_bar, write_json
from fedsim.config import Job, PartyFile, read_job, read_party_file
from fedsim.contribution.job_ladder import JobCases
from fedsim.contribution.ladder import FEDSIM_PLACEBO, train_ladder
from fedsim.contribution.rungs import ResultStore
from fedsim.data.synthetic import generate_city
from fedsim.data.table_reader import read_table
from fedsim.errors import FileError, PeerError
from fedsim.linkage.encoding import Key
from fedsim.protocol.certificates import issue_certificates
from fedsim.report.formatting import format_bytes, format_duration, format_number
from fedsim.report.run_data import LADDER_FILE
from fedsim.report.run_report import write_report
from fedsim.runs.approval import approve
from fedsim.runs.record import RunRecord, read_run_record
from fedsim.runs.run_folder import PROGRESS_FILE, read_ledger, run_path
from fedsim.storage.files import atomic_write

FLATS = 1_500
PARTY_NAMES = ("notary", "city", "rentals")
PORT_PLACEHOLDERS = ("COORDINATOR_PORT", "PRIMARY_PORT")
MARKER_FILE = ".fedsim-demo"
DEMO_SPLIT = "group"
UNIT = "thousand S$"
MAX_WIDTH, NAME_WIDTH = 80, 9  # of a line, and of the first word in it
TIMEOUT_SECONDS = 240.0  # until the parties are stopped
POLL_SECONDS = 0.2
STOP_SECONDS = 5.0  # for a party to exit by itself after SIGTERM
SHOWN_RUNGS = ("solo", "solo-identifiers", "top1sim", "avgsim", "fedsim", "fedsim-identifiers", FEDSIM_PLACEBO)
BEST_REMARKS = {"alone": "best alone", "together": "best with the partner"}  # by the side they are chosen for
DISCLOSURES = {
    "notary": "encoded identifiers without the key; no features, no labels",
    "city": "noisy similarities, pseudonyms, activations; no rental",
    "rentals": "requested rows and gradients; no flat, price or similarity",
}
Process = subprocess.Popen[bytes]


@dataclass(frozen=True, eq=False)
class DemoSetup:
    """The folder of the demo with everything in place for the first run."""

    folder: Path
    job: Job
    parties: dict[str, PartyFile]

    def run_of(self, name: str) -> Path:
        """Return the run folder of a party."""
        return run_path(self.job, self.parties[name])

    def log_of(self, name: str) -> Path:
        """Return the file with the output of a party."""
        return self.folder / f"{name}.log"


@dataclass(frozen=True)
class DemoPrinter:
    """Prints lines of at most 80 columns, or nothing."""

    silent: bool

    def say(self, text: str = "") -> None:
        """Print a text, wrapped; paths and options are never split."""
        width = min(MAX_WIDTH, shutil.get_terminal_size((MAX_WIDTH, 24)).columns)
        indent = " " * (2 + NAME_WIDTH) if text.startswith("  ") else ""
        lines = textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        if not self.silent:
            print_lines(lines or [""])

    def phase(self, name: str, text: str, seconds: float, n_bytes: int = 0) -> None:
        """Print the line of a phase that has ended."""
        cost = f"{format_duration(seconds)}, {format_bytes(n_bytes)}" if n_bytes else format_duration(seconds)
        self.say(f"  {name:<{NAME_WIDTH}}{text} ({cost})")


def run_demo(folder: Path, seed: int, mode: OutputMode) -> None:
    """Generate tables, set up a job, run its parties, compare methods and write a report, all in one folder."""
    started, printer = time.perf_counter(), DemoPrinter(mode.silent)
    create_demo_folder(folder)
    printer.say("A city knows the prices of its flats, an agency the rents of others. Their tables share no key.")
    began = time.perf_counter()
    # Flats with prices for the city and rentals for the agency; they share locations, but no key.
    town = generate_city(np.random.default_rng(seed), flats=FLATS)
    for name, table in (("flats", town.flats), ("rentals", town.rentals)):
        with atomic_write(folder / f"{name}.csv") as part:
            table.write_csv(part)
    text = f"flats.csv with {len(town.flats):,} records, rentals.csv with {len(town.rentals):,}"
    printer.phase("tables", text, time.perf_counter() - began)
    began = time.perf_counter()
    demo = write_agreement(folder)
    printer.phase("setup", "job and party files, key, certificates, approvals", time.perf_counter() - began)
    record = _train(demo, printer)
    ladder = _compare(demo, printer)
    page = write_report(demo.run_of("city"), mapped=demo.parties["city"])
    truth = town.truth.contribution("rentals")
    _print_results(demo, record, ladder, truth, printer)
    seconds = time.perf_counter() - started
    printer.say(f"Done in {format_duration(seconds)}. Next steps:")
    printer.say(f"  report:  {page}")
    printer.say(f"  files:   {folder} has the tables, job and party files, logs and models")
    printer.say("  start:   fedsim init --primary YOURS.csv --secondary THEIRS.csv")
    printer.say("  then:    fedsim approve, fedsim check, fedsim train; see fedsim --help")
    if mode.json:
        value = {"folder": str(folder), "report": str(page), "seconds": seconds, "metrics": record.metrics}
        print_json({**value, "ladder": ladder, "truth": truth})


def create_demo_folder(folder: Path) -> None:
    """Create an empty folder; an earlier demo in it is removed, anything else is an error."""
    try:
        if (folder / MARKER_FILE).is_file():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            message = f"the folder {folder} is not empty and contains no demo; choose another with --out"
            raise FileError(message, code="folder-not-empty")
        (folder / MARKER_FILE).touch()
    except OSError as error:
        message = f"cannot create the folder {folder} ({error.strerror}); choose another with --out"
        raise FileError(message, code="folder-not-writable") from error


def write_agreement(folder: Path) -> DemoSetup:
    """Write job and party files on free ports, the linkage key, certificates and each owner's approval."""
    ports = dict(zip(PORT_PLACEHOLDERS, free_ports(len(PORT_PLACEHOLDERS)), strict=True))
    for name in ("job", *PARTY_NAMES):
        text = files("fedsim.cli").joinpath("demo_files", f"{name}.toml").read_text(encoding="utf-8")
        for placeholder, port in ports.items():
            text = text.replace(placeholder, str(port))
        with atomic_write(folder / f"{name}.toml") as part:
            part.write_text(text, encoding="utf-8")
    job, now = read_job(folder / "job.toml"), datetime.now(UTC)
    Key.generate().write(folder / "linkage.key")
    issue_certificates(folder / "certs", job.parties, now)
    parties = {name: read_party_file(folder / f"{name}.toml") for name in PARTY_NAMES}
    for own in parties.values():
        header = read_table(own.data.source).columns if own.data else None
        approve(job, own, header, by="fedsim demo", time=now)
    return DemoSetup(folder, job, parties)


def free_ports(number: int) -> list[int]:
    """Return ports of this machine that are free at the moment."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


def _train(demo: DemoSetup, printer: DemoPrinter) -> RunRecord:
    """Run the three parties; print a line for each phase once all have exited, so that nothing disturbs the bar."""
    with progress_bar("start, link, train", hidden=printer.silent) as move:
        run_parties(demo, move)
    record = read_run_record(demo.run_of("city"))
    progress = [_read_progress(demo.run_of(name)) for name in demo.parties]
    sent: Counter[str] = Counter()  # bytes by phase
    for entry in (entry for each in progress for entry in each["ledger"]):
        sent[entry["phase"]] += entry["bytes"]
    seconds: Counter[str] = Counter()  # of the primary, by phase
    for phase in _read_progress(demo.run_of("city"))["phases"]:
        seconds[phase["name"]] += phase["seconds"]
    terms = demo.job.secondaries["rentals"]
    printer.phase("start", "notary, city, rentals as processes with mutual TLS", seconds["join"])
    # Each message was counted by its sender and by its receiver.
    text = f"{terms.k} similar rentals per flat, noise for tau {terms.tau:g}"
    printer.phase("link", text, seconds["link"], sent["link"] // 2)
    rmse = format_number(record.metrics["test"]["rmse"])
    text = f"best of {len(record.history)} epochs: {record.best_epoch}; test RMSE {rmse} {UNIT}"
    printer.phase("train", text, seconds["train"] + seconds["explain"], sent["train"] // 2)
    return record


def run_parties(demo: DemoSetup, move: ProgressCallback | None = None) -> None:
    """Start all parties and wait until they have exited; ``move`` shows the progress of the primary."""
    running: dict[str, Process] = {}
    # Signals are recorded instead of raised at once, which could lose a party that has just been started.
    signals: list[int] = []
    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():  # no other thread receives signals
            for number in STOP_SIGNALS:
                before = signal.signal(number, lambda seen, _: signals.append(seen))
                stack.callback(signal.signal, number, before)
        try:
            for name in demo.parties:
                command = [sys.executable, "-m", "fedsim", "party", "job.toml", f"{name}.toml"]
                with demo.log_of(name).open("wb") as out:
                    running[name] = subprocess.Popen(command, cwd=demo.folder, stdout=out, stderr=subprocess.STDOUT)  # noqa: S603
            _wait(demo, running, move, signals)
        finally:
            for process in running.values():
                process.terminate()
            for process in running.values():
                try:
                    process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _wait(
    demo: DemoSetup, running: Mapping[str, Process], move: ProgressCallback | None, signals: Sequence[int]
) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        codes = {name: process.poll() for name, process in running.items()}
        if signals:
            raise KeyboardInterrupt
        failed = [name for name, code in codes.items() if code]
        if failed:
            log = demo.log_of(failed[0])
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines() or ["no message"]
            error = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1])
            raise PeerError(f"{failed[0]} failed: {error.removeprefix('error: ')}; see {log}", code="party-failed")
        if None not in codes.values():
            return
        if time.monotonic() > deadline:
            message = f"the parties did not finish within {TIMEOUT_SECONDS:.0f} s; see {demo.log_of('city')}"
            raise PeerError(message, code="demo-timeout")
        training = _read_progress(demo.run_of("city")).get("training")
        if training and move:
            move(training["steps"], training["epochs"] * training["steps_per_epoch"])
        time.sleep(POLL_SECONDS)


def _read_progress(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / PROGRESS_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError):  # not written yet
        return {}


def _compare(demo: DemoSetup, printer: DemoPrinter) -> dict[str, Any]:
    """Train every rung once, with the split that keeps equal locations on one side."""
    began, folder = time.perf_counter(), demo.folder / "compare"
    tables = JobCases.read(demo.job, list(demo.parties.values()), folder, UNIT)
    rungs = training_settings_of(demo.job).rungs()
    torch.set_num_threads(demo.job.training.threads)
    with progress_bar("compare", hidden=printer.silent) as move:
        done, cases = count(1), tables.cases(1, (DEMO_SPLIT,))
        report = lambda _: move(next(done), len(rungs)) if move else None  # noqa: E731
        ladder = train_ladder(cases, rungs, ResultStore(folder), report).to_dict()
    write_json(demo.run_of("city") / LADDER_FILE, ladder)
    text = f"{len(rungs)} models: alone, with the partner, with a placebo"
    printer.phase("compare", text, time.perf_counter() - began)
    return ladder


def _print_results(
    demo: DemoSetup, record: RunRecord, ladder: dict[str, Any], truth: float, printer: DemoPrinter
) -> None:
    """Print what each party received, by its own ledger; the important rungs, the contribution and the truth."""
    printer.say()
    printer.say("What each party received from the others:")
    for name, text in DISCLOSURES.items():
        own = str(demo.parties[name].party)
        received = sum(entry.bytes for entry in read_ledger(demo.run_of(name)) if entry.receiver == own)
        printer.say(f"  {name:<{NAME_WIDTH}}{text} ({format_bytes(received)})")
    printer.say()
    printer.say(f"What the partner contributes (RMSE in {UNIT} on {ladder['records']:,} test flats):")
    for rung in ladder["rungs"]:
        key, remarks = rung["key"], []
        if key == record.method:
            remarks.append(f"this run: {format_number(record.metrics['test']['rmse'])}")
        remarks += [text for side, text in BEST_REMARKS.items() if key in ladder["chosen"][side]]
        if key in SHOWN_RUNGS or remarks:
            printer.say(f"  {rung['name']:<41}{rung['mean']:>6.1f}  {', '.join(remarks)}".rstrip())
    printer.say(ladder["worth"])
    printer.say(f"In this generated city the rentals can contribute at most {truth:.3g} {UNIT}.")
    printer.say()
