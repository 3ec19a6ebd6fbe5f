"""A folder with a job, its three parties and all they need; approved and ready to run."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from fedsim.data.readers import read_table
from fedsim.data.synthetic import city
from fedsim.linkage.encoding import Key
from fedsim.party.approval import approve
from fedsim.party.job import read_job
from fedsim.party.party_file import read_party_file
from fedsim.protocol.certificates import certify

EXAMPLE = Path(__file__).parents[1] / "examples" / "three_processes"
PARTIES = ("notary", "city", "rentals")


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
    certify(folder / "certs", read_job(folder / "job.toml").parties, datetime.now(UTC))
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


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses just now, each another."""
    doors = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [door.getsockname()[1] for door in doors]
    for door in doors:
        door.close()
    return ports
