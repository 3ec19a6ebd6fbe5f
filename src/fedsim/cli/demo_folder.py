"""The folder of the demo: tables, job and party files, key, certificates and approvals, as users would make them."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

import numpy as np

from fedsim.data.datasets.known_city import KnownCity, known_city
from fedsim.data.readers import read_table
from fedsim.errors import FileError
from fedsim.linkage.encoding import Key
from fedsim.linkage.whole_file import whole_file
from fedsim.party.approval import approve
from fedsim.party.job import Job, read_job
from fedsim.party.party_file import PartyFile, read_party_file
from fedsim.party.run_folder import run_path
from fedsim.protocol.certificates import certify

FLATS = 1_500
PARTIES = ("notary", "city", "rentals")
PORTS = ("COORDINATOR_PORT", "PRIMARY_PORT")
MARK = ".fedsim-demo"


@dataclass(frozen=True, eq=False)
class Scene:
    """Everything in place, and nothing has run yet."""

    folder: Path
    town: KnownCity
    job: Job
    parties: dict[str, PartyFile]

    def run_of(self, name: str) -> Path:
        """The run folder of a party."""
        return run_path(self.job, self.parties[name])


def fresh_folder(folder: Path) -> None:
    """An empty folder; an earlier demo gives way, anything else does not."""
    try:
        if (folder / MARK).is_file():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise FileError(f"the folder {folder} is not empty and holds no demo; choose another with --out")
        (folder / MARK).touch()
    except OSError as error:
        raise FileError(f"the folder {folder} cannot be made ({error.strerror}); choose another with --out") from error


def write_tables(folder: Path, seed: int) -> KnownCity:
    """Flats with prices for one, rentals for the other; they share no key, only places."""
    town = known_city(np.random.default_rng(seed), flats=FLATS)
    for name, table in (("flats", town.flats), ("rentals", town.rentals)):
        with whole_file(folder / f"{name}.csv") as part:
            table.write_csv(part)
    return town


def agree(folder: Path, town: KnownCity) -> Scene:
    """Job and party files on free ports, the key of the two that link, certificates, and each owner's approval."""
    ports = free_ports(len(PORTS))
    for name in ("job", *PARTIES):
        text = files("fedsim.cli").joinpath("demo_files", f"{name}.toml").read_text(encoding="utf-8")
        for word, port in zip(PORTS, ports, strict=True):
            text = text.replace(word, str(port))
        with whole_file(folder / f"{name}.toml") as part:
            part.write_text(text, encoding="utf-8")
    job, now = read_job(folder / "job.toml"), datetime.now(UTC)
    Key.generate().write(folder / "linkage.key")
    certify(folder / "certs", job.parties, now)
    parties = {name: read_party_file(folder / f"{name}.toml") for name in PARTIES}
    for own in parties.values():
        header = read_table(own.data.source).columns if own.data else None
        approve(job, own, header, by="fedsim demo", time=now)
    return Scene(folder, town, job, parties)


def free_ports(count: int) -> Sequence[int]:
    """Ports of this machine that nobody uses just now."""
    doors = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [door.getsockname()[1] for door in doors]
    for door in doors:
        door.close()
    return ports
