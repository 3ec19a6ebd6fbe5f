"""A small job with its party files in a folder, and its parties in threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedsim.cli.demo import free_ports
from fedsim.config.job import Job, read_job
from fedsim.config.party_file import PartyFile, read_party_file
from fedsim.data.synthetic import city
from fedsim.data.table_reader import read_table
from fedsim.errors import FedSimError
from fedsim.linkage.encoding import Key
from fedsim.protocol.certificates import issue_certificates
from fedsim.protocol.transport import Transport
from fedsim.runs.approval import approve
from fedsim.runtime.coordinator import run_coordinator
from fedsim.runtime.party_context import PartyContext, open_party_context, software_versions
from fedsim.runtime.secondary import run_secondary

EXAMPLE = Path(__file__).parents[1] / "examples" / "three_processes"
PARTIES = ("notary", "city", "rentals")


def lay_out(folder: Path, changes: Mapping[str, Mapping[str, str]] | None = None, *, flats: int = 300) -> None:
    """The example's files, with words replaced in some of them, and tables to go with them."""
    wanted = {"job": {"epochs = 8": "epochs = 2", "k = 20": "k = 5"}, "rentals": {"1000": "100"}}
    for name in ("job", *PARTIES):
        text = (EXAMPLE / f"{name}.toml").read_text()
        for old, new in {**wanted.get(name, {}), **(changes or {}).get(name, {})}.items():
            assert old in text, f"{name}.toml has no '{old}'"
            text = text.replace(old, new)
        (folder / f"{name}.toml").write_text(text)
    town = city(np.random.default_rng(0), flats=flats, rentals=200)
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
        header = read_table(own.data.file).columns if own.data else None
        approve(job, own, header, by="owner", time=datetime.now(UTC))
    return job, files


@contextmanager
def staying(job: Job, own: PartyFile, transport: Transport) -> Iterator[PartyContext]:
    """A coordinator or a secondary that stays for predictions, in a thread, until the block ends."""
    there, posts = threading.Event(), []
    run: Callable[..., Any] = run_coordinator if own.role == "coordinator" else run_secondary

    def work() -> None:
        try:
            with open_party_context(job, own, transport, software_versions()) as post:
                posts.append(post)
                there.set()
                run(post, stay=True)
        except FedSimError:
            there.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    there.wait(30)
    try:
        yield posts[0]
    finally:
        posts[0].connection.stop_signal.report_failure("the test", "it is over")
        thread.join(30)


def fill(folder: Path) -> None:
    """The example's files with a small city, on ports that were free a moment ago."""
    for name in ("job", *PARTIES):
        (folder / f"{name}.toml").write_bytes((EXAMPLE / f"{name}.toml").read_bytes())
    for port, free in zip((7411, 7412), free_ports(2), strict=True):
        change(folder / "job.toml", f":{port}", f":{free}")
    tables = city(np.random.default_rng(7), flats=120, rentals=1000)
    tables.flats.write_csv(folder / "flats.csv")
    tables.rentals.write_csv(folder / "rentals.csv")
    Key(bytes(range(32))).write(folder / "linkage.key")
    issue_certificates(folder / "certs", read_job(folder / "job.toml").parties, datetime.now(UTC))
    for name in PARTIES:
        approve_now(folder, name)


def approve_now(folder: Path, name: str) -> None:
    """The owner's yes to the job as it is now."""
    own = read_party_file(folder / f"{name}.toml")
    header = read_table(own.data.file).columns if own.data else None
    approve(read_job(folder / "job.toml"), own, header, by="a test", time=datetime.now(UTC))


def change(path: Path, old: str, new: str) -> None:
    """Replace words that must be there."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
