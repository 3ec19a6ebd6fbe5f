"""One small job for all tests, from the example's files: in a folder, as threads of this process, or as processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedsim.config.job import Job, read_job
from fedsim.config.party_file import PartyFile, read_party_file
from fedsim.data.synthetic import City, city
from fedsim.errors import FedSimError
from fedsim.linkage.encoding import Key
from fedsim.protocol.transport import Transport
from fedsim.runtime.coordinator import run_coordinator
from fedsim.runtime.party_context import PartyContext, open_party_context, software_versions
from fedsim.runtime.secondary import run_secondary
from fedsim_lab.faults.local_job import CITY, NOTARY, RENTALS, approve_party, free_ports
from fedsim_ops.authority import issue_certificates
from session_fixtures import PATIENCE

EXAMPLE = Path(__file__).parents[1] / "examples" / "three_processes"
PARTIES = (NOTARY, CITY, RENTALS)


QUICK = {"job": {"epochs = 8": "epochs = 2", "k = 20": "k = 5"}, "rentals": {"1000": "100"}}
Changes = Mapping[str, Mapping[str, str]]


def lay_out(folder: Path, changes: Changes | None = None, *, flats: int = 300) -> None:
    """The example's files, quicker, with words replaced in some of them, and tables to go with them."""
    _write_example(folder, QUICK, changes or {}, city(np.random.default_rng(0), flats=flats, rentals=200))


def _write_example(folder: Path, wanted: Changes, changes: Changes, town: City) -> None:
    for name in ("job", *PARTIES):
        text = (EXAMPLE / f"{name}.toml").read_text()
        for old, new in {**wanted.get(name, {}), **changes.get(name, {})}.items():
            assert old in text, f"{name}.toml has no '{old}'"
            text = text.replace(old, new)
        (folder / f"{name}.toml").write_text(text)
    town.flats.write_csv(folder / "flats.csv")
    dear = (pl.col("price") > pl.col("price").median()).alias("dear")
    town.flats.select("lat", "lon", "area", "storey", "age", dear).write_csv(folder / "classes.csv")
    town.rentals.write_csv(folder / "rentals.csv")
    Key(bytes(32)).write(folder / "linkage.key")


def read_all(folder: Path, *, approved: bool = True) -> tuple[Job, dict[str, PartyFile]]:
    """The job and its party files, approved by their owners."""
    job = read_job(folder / "job.toml")
    files = {name: read_party_file(folder / f"{name}.toml") for name in PARTIES}
    for own in files.values() if approved else ():
        approve_party(job, own)
    return job, files


@contextmanager
def staying(job: Job, own: PartyFile, transport: Transport) -> Iterator[PartyContext]:
    """A coordinator or a secondary that stays for predictions, in a thread, until the block ends."""
    there, posts = threading.Event(), []
    run: Callable[..., Any] = run_coordinator if own.role == "coordinator" else run_secondary

    def work() -> None:
        try:
            with open_party_context(job, own, transport, software_versions(), predicting=True) as post:
                posts.append(post)
                there.set()
                run(post, stay=True)
        except FedSimError:
            there.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    there.wait(PATIENCE)
    try:
        yield posts[0]
    finally:
        posts[0].connection.stop_signal.report_failure("the test", "it is over")
        thread.join(PATIENCE)


def fill(folder: Path) -> None:
    """The example as it is, with a small city and everything its parties need, on ports that are free."""
    ports = {f":{port}": f":{free}" for port, free in zip((7411, 7412), free_ports(), strict=False)}
    _write_example(folder, {}, {"job": ports}, city(np.random.default_rng(7), flats=120, rentals=1000))
    issue_certificates(folder / "certs", read_job(folder / "job.toml").parties, datetime.now(UTC))
    read_all(folder)


def approve_now(folder: Path, name: str) -> None:
    """The owner's yes to the job as it is now."""
    approve_party(read_job(folder / "job.toml"), read_party_file(folder / f"{name}.toml"))


def change(path: Path, old: str, new: str) -> None:
    """Replace words that must be there."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
