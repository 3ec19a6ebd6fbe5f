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

from fedsim.data.readers import read_table
from fedsim.data.synthetic import city
from fedsim.errors import FedSimError
from fedsim.linkage.encoding import Key
from fedsim.party.approval import approve
from fedsim.party.coordinator import run_coordinator
from fedsim.party.job import Job, read_job
from fedsim.party.party_file import PartyFile, read_party_file
from fedsim.party.post import Post, at_post
from fedsim.party.secondary import run_secondary
from fedsim.party.versions import versions_here
from fedsim.protocol.transport.base import Transport

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
def staying(job: Job, own: PartyFile, transport: Transport) -> Iterator[Post]:
    """A coordinator or a secondary that stays for predictions, in a thread, until the block ends."""
    there, posts = threading.Event(), []
    run: Callable[..., Any] = run_coordinator if own.role == "coordinator" else run_secondary

    def work() -> None:
        try:
            with at_post(job, own, transport, versions_here()) as post:
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
        posts[0].station.alarm.ring("the test", "it is over")
        thread.join(30)
