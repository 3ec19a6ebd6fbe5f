"""A small job of up to four parties in a folder: its files, certificates, approvals, and hashes of its result."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedsim.config.job import Job, read_job
from fedsim.config.party_file import PartyFile, read_party_file
from fedsim.data.synthetic import city
from fedsim.data.table_reader import read_table
from fedsim.linkage.direct.oprf import SecretKey
from fedsim.protocol.addresses import RelayAddress
from fedsim.protocol.messages import Party, Role
from fedsim.runs.approval import approve
from fedsim.runs.budget import key_store
from fedsim.runs.run_folder import make_private_folder, run_path
from fedsim.splitnn.party_model import CheckpointStore
from fedsim_ops.authority import issue_certificates, party_files

NOTARY, CITY, RENTALS, SCHOOLS, RELAY = "notary", "city", "rentals", "schools", "relay"
ROLES = {NOTARY: "coordinator", CITY: "primary", RENTALS: "secondary", SCHOOLS: "secondary"}
MEMBERS = {name: Party(Role(role), name) for name, role in ROLES.items()}
HUB = Party(Role.RELAY, RELAY)
QUARTERS = ["harbour", "old town", "university", "hillside", "mill lane", "station", "gardens", "east docks"]
SECRET, KEY = "5e" * 32, "0f" * 32
_NUMERIC = {"kind": "numeric", "threshold": 0.05}
TERMS: dict[str, dict[str, Any]] = {
    RENTALS: {
        "k": 5,
        "metric": "hamming",
        "tau": 0.2,
        "schema": {
            "version": 1,
            "fields": [
                {"column": "lat", "encoding": _NUMERIC | {"low": 0.9, "high": 1.8}},
                {"column": "lon", "encoding": _NUMERIC | {"low": 103.3, "high": 104.4}},
            ],
        },
    },
    SCHOOLS: {
        "k": 3,
        "metric": "dice",
        "sigma": 0.4,
        "schema": {"version": 1, "fields": [{"column": "district", "encoding": {"kind": "string", "bits": 256}}]},
    },
}
DIRECT_TERMS: dict[str, dict[str, Any]] = {
    RENTALS: {"k": 5, "tokens": [{"columns": ["lat", "lon"], "kind": "place", "metres": 200}]},
    SCHOOLS: {"k": 3, "tokens": [{"columns": ["district"], "kind": "text", "samples": 16}]},
}
Words = dict[str, Any]
Tables = Mapping[str, pl.DataFrame]


@dataclass(frozen=True)
class LocalJob:
    """A job in a folder."""

    folder: Path

    @property
    def job_path(self) -> Path:
        return self.folder / "job.toml"

    @property
    def job(self) -> Job:
        return read_job(self.job_path)

    @property
    def names(self) -> list[str]:
        return [party.name for party in self.job.parties]

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.toml"

    def job_path_of(self, name: str) -> Path:
        """Return the job file that a party reads: its own if it has one, as if on another machine."""
        own = self.folder / f"{name}-job.toml"
        return own if own.is_file() else self.job_path

    def own(self, name: str) -> PartyFile:
        return read_party_file(self.path(name))

    @property
    def relay_address(self) -> str | None:
        """The address of the relay for parties that accept no connections, if any."""
        relay = RelayAddress.parse(self.job.address_of(self.job.hub))
        return relay.address if relay else None

    def command(self, name: str) -> list[str]:
        """Return the arguments of ``fedsim`` that run a party or the relay."""
        if name != RELAY:
            return ["party", str(self.job_path_of(name)), str(self.path(name))]
        certs = self.folder / "certs"
        files = ["--certificate", str(party_files(certs, HUB)[0]), "--ca", str(certs / "ca.pem")]
        listen = self.relay_listen.read_text() if self.relay_listen.exists() else str(self.relay_address)
        return ["relay", *files, "--listen", listen, "--verbose"]

    @property
    def relay_listen(self) -> Path:
        """The file with the address at which the relay listens, if it differs from the address in the job."""
        return self.folder / "relay-listen"

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def run(self, name: str) -> Path:
        """Return the run folder of a party."""
        return run_path(read_job(self.job_path_of(name)), self.own(name))

    def change_job_of(self, name: str, **changes: Any) -> None:
        """Give one party a job file with other settings, such as ``training={"epochs": 3}``."""
        words = _merged(self.job.to_dict(), changes)
        (self.folder / f"{name}-job.toml").write_text(toml(_without_nothing(words)))

    def change_party(self, name: str, **changes: Any) -> None:
        words = json.loads((self.folder / f"{name}.json").read_text())
        self.write_party(name, _merged(words, changes))

    def write_party(self, name: str, words: Words) -> None:
        (self.folder / f"{name}.json").write_text(json.dumps(words))  # what `change_party` starts from
        self.path(name).write_text(toml(words))

    def approve(self, *names: str) -> None:
        """Approve the job for these parties, as their owners would with `fedsim approve`."""
        for name in names or self.names:
            approve_party(read_job(self.job_path_of(name)), self.own(name))

    def share_secret(self) -> None:
        """Use fixed secrets for noise, pseudonyms, first weights and tables, so that jobs can be compared."""
        for name in self.names:
            folder = self.run(name)
            make_private_folder(folder)
            (folder / "secret").write_text(SECRET)
            (folder / "secret").chmod(0o600)
        if self.job.direct:
            for own in map(self.own, self.names):
                (own.folder / "lasting-secret").write_text(SECRET)
                (own.folder / "lasting-secret").chmod(0o600)
                key_store(own).create(own.name, datetime.now(UTC), SecretKey(bytes.fromhex(KEY)))

    def checkpoints(self) -> CheckpointStore:
        """The primary's checkpoints."""
        return CheckpointStore(self.run(CITY) / "checkpoints" / CITY, {})

    def hashes(self) -> dict[str, str]:
        """Return, for every party with a network, a hash of its last weights, optimiser state and part of the model."""
        return {name: _hash(self.run(name)) for name in self.names if name != NOTARY}


def create_local_job(
    folder: Path,
    *,
    n_secondaries: int = 1,
    tables: Tables | None = None,
    relay: bool = False,
    direct: bool = False,
    **changes: Any,
) -> LocalJob:
    """Create the example as a quick job of processes, with all its files; only the ports differ between calls.

    A ``direct`` job has no coordinator, and its parties have no linkage key.
    """
    if relay:
        address = f"relay://127.0.0.1:{next(free_ports())}"
        changes = {"primary": {"address": address}, **changes}
        changes |= {} if direct else {"coordinator": {"address": address}, **changes}
    place = LocalJob(folder)
    folder.mkdir(parents=True)
    names = [RENTALS, SCHOOLS][:n_secondaries]
    for name, frame in (tables or small_tables()).items():
        frame.write_csv(folder / f"{name}.csv")
    if not direct:
        (folder / "linkage.key").write_text(KEY)
        (folder / "linkage.key").chmod(0o600)
    words = _job_words(names)
    if direct:
        words |= {"coordinator": None, "secondaries": {name: DIRECT_TERMS[name] for name in names}}
    place.job_path.write_text(toml(_without_nothing(_merged(words, changes))))
    hub = [HUB] if place.relay_address else []
    issue_certificates(folder / "certs", [*place.job.parties, *hub], datetime.now(UTC))
    for name in place.names:
        own = _party_words(name, names)
        if direct:
            del own["linkage"]
        place.write_party(name, own)
    place.approve()
    place.share_secret()
    return place


def moved(place: LocalJob, folder: Path) -> LocalJob:
    """Return the same job as if it were on another machine, with its own run folders."""
    shutil.copytree(place.folder, folder)
    return LocalJob(folder)


def small_tables(flats: int = 120, rentals: int = 90, schools: int = 40) -> dict[str, pl.DataFrame]:
    rng = np.random.default_rng(7)
    found = city(rng, flats=flats, rentals=rentals)
    quarter = rng.integers(0, len(QUARTERS), schools)
    return {
        CITY: found.flats.with_columns(quarter=pl.Series(rng.choice(QUARTERS, flats))),
        RENTALS: found.rentals,
        SCHOOLS: pl.DataFrame(
            {
                "district": [QUARTERS[place] for place in quarter],
                "pupils": rng.integers(80, 900, schools),
                "grade": rng.normal(2.5, 0.4, schools).round(2) + 0.1 * quarter,
            }
        ),
    }


def _job_words(secondaries: list[str]) -> Words:
    ports = free_ports()
    return {
        "name": "flats",
        "seed": 7,
        "coordinator": {"name": NOTARY, "address": f"127.0.0.1:{next(ports)}"},
        "primary": {"name": CITY, "address": f"127.0.0.1:{next(ports)}"},
        "task": {"kind": "regression", "split": "random"},
        "training": {
            "preset": "paper",
            "method": "fedsim",
            "epochs": 3,
            "batch_size": 16,
            "checkpoint_steps": 2,
            "wire": "int8",
        },
        "network": {"wait_seconds": 60},
        "secondaries": {name: TERMS[name] for name in secondaries},
    }


def _party_words(name: str, secondaries: list[str]) -> Words:
    words: Words = {"name": name, "role": ROLES[name], "folder": f"{name}-run", "tls": _tls(f"{ROLES[name]}-{name}")}
    if name != NOTARY:
        words |= {"data": {"file": f"{name}.csv"}, "linkage": {"key": "linkage.key"}}
    if name == CITY:
        own = {"identifiers": {SCHOOLS: {"district": "quarter"}}}
        words |= {"label": {"column": "price"}}
        words |= own if SCHOOLS in secondaries else {"features": {"drop": ["quarter"]}}
    return words


def approve_party(job: Job, own: PartyFile) -> None:
    """Approve a job for a party, as its owner would with `fedsim approve`."""
    header = read_table(own.data.source).columns if own.data else None
    approve(job, own, header, by="a test", time=datetime.now(UTC))


def _tls(stem: str) -> Words:
    return {"authority": "certs/ca.pem", "certificate": f"certs/{stem}.pem", "key": f"certs/{stem}.key"}


_started = itertools.count()


def free_ports() -> Iterator[int]:
    """Yield unused ports below the ephemeral range; tests that run in parallel get different ones."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = 20_000 + 1_000 * (worker % 12) + (os.getpid() * 37 + next(_started)) % 1_000
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port


def toml(words: Mapping[str, Any], *above: str) -> str:
    """Return nested tables as TOML; scalars and lists are written as in JSON."""
    plain = {key: value for key, value in words.items() if not isinstance(value, dict)}
    lines = [f"[{'.'.join(above)}]"] if above and plain else []
    lines += [f"{key} = {_value(value)}" for key, value in plain.items()]
    inner = [toml(value, *above, key) for key, value in words.items() if isinstance(value, dict)]
    return "\n".join([*lines, *inner, ""])


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(inside)}" for key, inside in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)


def _merged(words: Words, changes: Mapping[str, Any]) -> Words:
    found = dict(words)
    for key, value in changes.items():
        inside = found.get(key)
        found[key] = _merged(inside, value) if isinstance(value, dict) and isinstance(inside, dict) else value
    return found


def _without_nothing(words: Any) -> Any:
    if isinstance(words, dict):
        return {key: _without_nothing(value) for key, value in words.items() if value is not None}
    return words


def _hash(folder: Path) -> str:
    """Return the SHA-256 of the newest checkpoint, its step, the party's part of the model, its trees and embedding."""
    embedding, steps = folder / "sealed.safetensors", list(folder.glob("checkpoints/**/step-*"))
    digest = hashlib.sha256(embedding.read_bytes() if embedding.is_file() else b"")
    if not steps and embedding.is_file():  # a secondary under sealed labels trains nothing
        return digest.hexdigest()
    last = max(steps, key=lambda path: path.name)
    digest.update(last.name.encode())
    for path in (last, *(folder / part / "step-000000000" for part in ("model", "trees"))):
        if path.name == last.name or path.parent.name == "model" or path.is_dir():
            digest.update((path / "tensors.safetensors").read_bytes())
    return digest.hexdigest()
