"""Run two parties on generated tables and report the partner's contribution (``fedsim demo``)."""

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
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsim.cli import STOP_SIGNALS
from fedsim.cli.init import JOB_FILE, InitRequest, run_init
from fedsim.cli.options import OutputMode, print_json, print_nothing, terminal_width
from fedsim.cli.output import ProgressCallback, print_lines, progress_bar, write_json
from fedsim.config import Job, PartyFile, read_job, read_party_file
from fedsim.config.toml_file import set_values
from fedsim.contribution.job_ladder import remote_cases
from fedsim.contribution.ladder import (
    RUNGS,
    SOLO,
    SOLO_WITH_IDENTIFIERS,
    STACKED_SHUFFLED,
    TREES_WITH_IDENTIFIERS,
    train_ladder,
    with_embedding,
    with_settings,
)
from fedsim.contribution.rungs import STACKED, ResultStore, Rung, SplitArrays
from fedsim.data.synthetic import generate_city
from fedsim.data.table_reader import read_table
from fedsim.errors import FileError, PeerError
from fedsim.linkage.direct.oprf import SecretKey
from fedsim.pipeline.party_table import LASTING_SECRET_FILE, PartyData
from fedsim.privacy.keyed_prng import SECRET_BYTES
from fedsim.protocol.messages import Phase
from fedsim.registry import SERVICES
from fedsim.report.formatting import format_bytes, format_duration, format_number
from fedsim.report.run_data import LADDER_FILE
from fedsim.report.run_report import write_report
from fedsim.runs.approval import approve
from fedsim.runs.budget import key_store
from fedsim.runs.record import PREDICTED_COLUMN, RunRecord, read_run_record, read_test_predictions
from fedsim.runs.run_folder import PROGRESS_FILE, SECRET_FILE, make_private_folder, read_ledger, run_path
from fedsim.runtime.party_context import open_party_context, open_transport, software_versions
from fedsim.storage.files import atomic_write

FLATS = 1_500
PARTY_NAMES = ("city", "rentals")
RECEIVED = {
    "city": "an encrypted table, of which its flats open the rentals nearby",
    "rentals": "blinded tokens; no flat, place, price or similarity",
}
MARKER_FILE = ".fedsim-demo"
UNIT = "thousand S$"
# The settings in which the job differs from what `fedsim init --yes` writes, so that the demo takes a minute.
K, EPOCHS = 8, 20
FAST_TRAINING: Mapping[tuple[str, ...], str] = {("training", "batch_size"): "128", ("training", "patience"): "3"}
MAX_WIDTH, NAME_WIDTH = 80, 9  # of a line, and of the first word in it
NO_BREAK = "\xa0"  # a space at which no line is wrapped
TIMEOUT_SECONDS = 600.0  # until the parties are stopped
POLL_SECONDS = 0.2
STOP_SECONDS = 5.0  # for a party to exit by itself after SIGTERM
# What the primary can do alone, and the model of the job, the only one with the partner.
COMPARED = (SOLO, SOLO_WITH_IDENTIFIERS, TREES_WITH_IDENTIFIERS, STACKED_SHUFFLED, STACKED)
N_TRAININGS = 8  # of the comparison, with those that are combined
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
        width, indent = terminal_width(MAX_WIDTH), " " * (2 + NAME_WIDTH) if text.startswith("  ") else ""
        lines = textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        if not self.silent:
            print_lines([line.replace(NO_BREAK, " ") for line in lines] or [""])

    def phase(self, name: str, text: str, seconds: float, n_bytes: int = 0) -> None:
        """Print the line of a phase that has ended."""
        cost = f"{format_duration(seconds)}, {format_bytes(n_bytes)}" if n_bytes else format_duration(seconds)
        self.say(f"  {name:<{NAME_WIDTH}}{text} ({cost.replace(' ', NO_BREAK)})")


def run_demo(folder: Path, seed: int, mode: OutputMode) -> None:
    """Generate tables, set up a job, run its parties, compare methods and write a report, all in one folder."""
    started, printer = time.perf_counter(), DemoPrinter(mode.silent)
    create_demo_folder(folder)
    printer.say("A city knows the prices of its flats, an agency the rents of others. Their tables share no key.")
    began = time.perf_counter()
    # Flats with prices for the city and rentals for the agency; they share locations, but no key.
    town = generate_city(np.random.default_rng(seed), flats=FLATS)
    for name, table in (("city", town.flats), ("rentals", town.rentals)):
        with atomic_write(folder / f"{name}.csv") as part:
            table.write_csv(part)
    text = f"city.csv with {len(town.flats):,} flats, rentals.csv with {len(town.rentals):,}"
    printer.phase("tables", text, time.perf_counter() - began)
    began = time.perf_counter()
    demo = write_agreement(folder, seed)
    printer.phase("setup", "fedsim init, certs and approve: all files of the job", time.perf_counter() - began)
    record = _train(demo, printer)
    ladder = _compare(demo, record, printer)
    page = folder / "report.html"  # a short name for the page in the run folder
    page.symlink_to(write_report(demo.run_of("city")).relative_to(folder))
    truth = town.truth.contribution("rentals")
    _print_results(demo, ladder, truth, printer)
    seconds = time.perf_counter() - started
    printer.say(f"Done in {format_duration(seconds)}. Next steps:")
    printer.say(f"  report:  {page}")
    printer.say(f"  files:   {folder}")
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


def write_agreement(folder: Path, seed: int) -> DemoSetup:
    """Write what ``fedsim init`` proposes, on a free port; key and secrets, certificates and each owner's approval.

    Key and secrets come from the seed, so that a second demo prints the same figures. Real ones never do.
    """
    rng, now = np.random.default_rng([seed, SECRET_BYTES]), datetime.now(UTC)
    tables = {"primary": str(folder / "city.csv"), "secondary": str(folder / "rentals.csv")}
    accept = InitRequest(tables, k=K, epochs=EPOCHS, prompt=lambda _, proposal: proposal)
    run_init(accept, folder, force=False, say=print_nothing)
    (port,) = free_ports(1)
    settings = {**FAST_TRAINING, ("seed",): str(seed), ("primary", "address"): f'"127.0.0.1:{port}"'}
    text = set_values((folder / JOB_FILE).read_text(encoding="utf-8"), settings)
    with atomic_write(folder / JOB_FILE) as part:
        part.write_text(text, encoding="utf-8")
    job = read_job(folder / JOB_FILE)
    SERVICES["issue-certificates"](folder / "certs", job.parties, now)
    demo = DemoSetup(folder, job, {name: read_party_file(folder / f"{name}.toml") for name in PARTY_NAMES})
    for name, own in demo.parties.items():
        header = read_table(own.data.source).columns if own.data else None
        approve(job, own, header, by="fedsim demo", time=now)
        for file in (demo.run_of(name) / SECRET_FILE, own.folder / LASTING_SECRET_FILE):
            make_private_folder(file.parent)
            with atomic_write(file, mode=0o600) as part:
                part.write_text(f"{rng.bytes(SECRET_BYTES).hex()}\n", encoding="ascii")
    key = SecretKey.derive(rng.bytes(SECRET_BYTES), b"key of the demo")
    key_store(demo.parties["rentals"]).create("rentals", now, key)
    return demo


def free_ports(number: int) -> list[int]:
    """Return ports of this machine that are free at the moment."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


def _train(demo: DemoSetup, printer: DemoPrinter) -> RunRecord:
    """Run both parties; print a line for each phase once all have exited, so that nothing disturbs the bar."""
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
    (links,) = record.lists
    printer.phase("start", "city and rentals as processes with mutual TLS", seconds["join"])
    # Each message was counted by its sender and by its receiver.
    text = f"{links.k} similar rentals per flat, by {links.evaluated:,} tokens"
    printer.phase("link", text, seconds["link"], sent["link"] // 2)
    rmse = format_number(record.metrics["test"]["rmse"])
    text = f"best epoch {record.best_epoch} of {len(record.history)}; test RMSE {rmse} {UNIT}"
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


def _compare(demo: DemoSetup, record: RunRecord, printer: DemoPrinter) -> dict[str, Any]:
    """Train what the primary can do alone and a placebo partner, on the split of the run, and compare the run."""
    began, results, own = time.perf_counter(), ResultStore(demo.folder / "compare"), demo.parties["city"]
    with open_party_context(demo.job, own, open_transport(own), software_versions()) as context:
        # With the rows that the run left here, as `fedsim compare job.toml city.toml` does.
        (arrays,) = remote_cases(context, PartyData.read(demo.job, own, approved=True), 1, UNIT)
    rungs = with_settings(demo.job.training.settings, [rung for rung in RUNGS if rung.key in COMPARED])
    rungs = with_embedding(rungs) if demo.job.sends_embedding else rungs
    model = next(rung for rung in rungs if rung.key == STACKED)
    placebo = replace(model, key=f"{STACKED}-placebo", name=f"{model.name}, placebo partner", partner="placebo")
    _add_run(results, model, arrays, demo.run_of("city"), record)
    torch.set_num_threads(demo.job.training.threads)
    with progress_bar("compare", hidden=printer.silent) as move:
        done = count(1)
        report = lambda _: move(next(done), N_TRAININGS) if move else None  # noqa: E731
        ladder = train_ladder([arrays], [*rungs, placebo], results, report, lengthen=False).to_dict()
    write_json(demo.run_of("city") / LADDER_FILE, ladder)
    printer.phase("compare", "the primary alone, and with a placebo partner", time.perf_counter() - began)
    return ladder


def _add_run(results: ResultStore, rung: Rung, arrays: SplitArrays, run: Path, record: RunRecord) -> None:
    """Store the run as the result of its rung, so that the ladder compares the very model that was trained."""
    figures = {"best_epoch": record.best_epoch, "limit": record.config["epochs"], "seconds": record.seconds}
    figures["patience"] = record.config.get("patience")
    metrics = {part: record.metrics[part] for part in ("test", "validation")}
    predictions = read_test_predictions(run)[PREDICTED_COLUMN].to_numpy()
    # A run stores no predictions of its validation records; only trainings that others combine need them.
    on_validation = np.zeros(0)
    results.add({**arrays.about, **rung.result_key(arrays), **metrics, **figures}, predictions, on_validation)


def _print_results(demo: DemoSetup, ladder: dict[str, Any], truth: float, printer: DemoPrinter) -> None:
    """Print what each party received, by its own ledger; the rungs, the contribution and the truth.

    Handshakes and signed log heads do not count: how many there are depends on who starts first.
    """
    printer.say()
    printer.say("What each party received from the others, besides handshakes:")
    for name, text in RECEIVED.items():
        ledger, own = read_ledger(demo.run_of(name)), str(demo.parties[name].party)
        received = sum(entry.bytes for entry in ledger if entry.receiver == own and entry.phase != Phase.JOIN)
        printer.say(f"  {name:<{NAME_WIDTH}}{text} ({format_bytes(received).replace(' ', NO_BREAK)})")
    printer.say()
    printer.say(f"What the partner contributes (RMSE in {UNIT} on {ladder['records']:,} test flats):")
    remarks = dict.fromkeys(ladder["chosen"]["alone"], "best alone, by validation") | {STACKED: "the model of this run"}
    for rung in ladder["rungs"]:
        printer.say(f"  {rung['name']:<41}{rung['mean']:>6.1f}  {remarks.get(rung['key'], '')}".rstrip())
    printer.say(ladder["worth"])
    printer.say(f"In this generated city the best possible models with and without rentals differ by {truth:.3g}.")
    printer.say()
