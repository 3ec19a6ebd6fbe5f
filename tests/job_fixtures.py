"""One small job for all tests, from the example's files: in a folder, as threads of this process, or as processes."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import socket
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedsim.config.job import Job, read_job
from fedsim.config.party_file import PartyFile, read_party_file
from fedsim.data.synthetic import City, city
from fedsim.data.table_reader import read_table
from fedsim.errors import FedSimError
from fedsim.linkage.encoding import Key
from fedsim.protocol.certificates import issue_certificates
from fedsim.protocol.messages import Party, Role
from fedsim.protocol.transport import Transport
from fedsim.runs.approval import approve
from fedsim.runs.run_folder import make_private_folder, run_path
from fedsim.runtime.coordinator import run_coordinator
from fedsim.runtime.party_context import PartyContext, open_party_context, software_versions
from fedsim.runtime.secondary import run_secondary
from fedsim.splitnn.party_model import CheckpointStore

EXAMPLE = Path(__file__).parents[1] / "examples" / "three_processes"
NOTARY, CITY, RENTALS, SCHOOLS = "notary", "city", "rentals", "schools"
ROLES = {NOTARY: "coordinator", CITY: "primary", RENTALS: "secondary", SCHOOLS: "secondary"}
MEMBERS = {name: Party(Role(role), name) for name, role in ROLES.items()}
PARTIES = (NOTARY, CITY, RENTALS)
QUARTERS = ["harbour", "old town", "university", "hillside", "mill lane", "station", "gardens", "east docks"]
SECRET, KEY = "5e" * 32, "0f" * 32
Words = dict[str, Any]
Tables = Mapping[str, pl.DataFrame]


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
    """The example as it is, with a small city and everything its parties need, on ports that are free."""
    ports = {f":{port}": f":{free}" for port, free in zip((7411, 7412), free_ports(), strict=False)}
    _write_example(folder, {}, {"job": ports}, city(np.random.default_rng(7), flats=120, rentals=1000))
    issue_certificates(folder / "certs", read_job(folder / "job.toml").parties, datetime.now(UTC))
    read_all(folder)


def approve_now(folder: Path, name: str) -> None:
    """The owner's yes to the job as it is now."""
    approve_party(read_job(folder / "job.toml"), read_party_file(folder / f"{name}.toml"))


def approve_party(job: Job, own: PartyFile) -> None:
    header = read_table(own.data.file).columns if own.data else None
    approve(job, own, header, by="a test", time=datetime.now(UTC))


def change(path: Path, old: str, new: str) -> None:
    """Replace words that must be there."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


# A job whose parties are processes


@dataclass(frozen=True)
class Place:
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
        """The job file that a party reads: its own where it has one, as if on another machine."""
        own = self.folder / f"{name}-job.toml"
        return own if own.is_file() else self.job_path

    def own(self, name: str) -> PartyFile:
        return read_party_file(self.path(name))

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def run(self, name: str) -> Path:
        """Where a party keeps what belongs to the job."""
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
        """What the owners of these parties would do by `fedsim approve`."""
        for name in names or self.names:
            approve_party(read_job(self.job_path_of(name)), self.own(name))

    def share_secret(self) -> None:
        """Noise, pseudonyms and the secondaries' first weights come from this: jobs to be compared share it."""
        for name in self.names:
            folder = self.run(name)
            make_private_folder(folder)
            (folder / "secret").write_text(SECRET)
            (folder / "secret").chmod(0o600)

    def checkpoint_step(self) -> int:
        """How far the primary has come; -1 before it has begun."""
        steps = CheckpointStore(self.run(CITY) / "checkpoints" / CITY, {}).steps()
        return steps[-1] if steps else -1

    def hashes(self) -> dict[str, str]:
        """Of every party that has a network: its last weights and optimiser state, and its part of the model."""
        return {name: _hash(self.run(name)) for name in self.names if name != NOTARY}


def create_place(folder: Path, *, n_secondaries: int = 1, tables: Tables | None = None, **changes: Any) -> Place:
    """The example as a quick job of processes, with everything it needs; the same every time but for its ports."""
    place = Place(folder)
    folder.mkdir(parents=True)
    names = [RENTALS, SCHOOLS][:n_secondaries]
    for name, frame in (tables or small_tables()).items():
        frame.write_csv(folder / f"{name}.csv")
    (folder / "linkage.key").write_text(KEY)
    (folder / "linkage.key").chmod(0o600)
    place.job_path.write_text(toml(_without_nothing(_merged(_quick_job(names), changes))))
    issue_certificates(folder / "certs", place.job.parties, datetime.now(UTC))
    for name in (NOTARY, CITY, *names):
        place.write_party(name, _party_words(name, names))
    place.approve()
    place.share_secret()
    return place


def moved(place: Place, folder: Path) -> Place:
    """The same job as if it were on another machine, with run folders of its own."""
    shutil.copytree(place.folder, folder)
    return Place(folder)


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


def _example(name: str) -> Words:
    return tomllib.loads((EXAMPLE / f"{name}.toml").read_text(encoding="utf-8"))


def _quick_job(secondaries: list[str]) -> Words:
    ports, words = free_ports(), _example("job")
    for role in ("coordinator", "primary"):
        words[role]["address"] = f"127.0.0.1:{next(ports)}"
    words["training"] |= {"preset": "paper", "epochs": 3, "batch_size": 16, "checkpoint_steps": 2}
    schools = {"version": 1, "fields": [{"column": "district", "encoding": {"kind": "words", "bits": 256}}]}
    terms = {
        RENTALS: words["secondaries"][RENTALS] | {"k": 5, "tau": 0.2},
        SCHOOLS: {"k": 3, "metric": "dice", "sigma": 0.4, "schema": schools},
    }
    return words | {"secondaries": {name: terms[name] for name in secondaries}}


def _party_words(name: str, secondaries: list[str]) -> Words:
    words = _example(RENTALS if name == SCHOOLS else name)
    words |= {"name": name, "folder": f"{name}-run", "tls": _tls(f"{ROLES[name]}-{name}")}
    if name != NOTARY:
        words["data"] = {"file": f"{name}.csv"}
    if name == CITY:
        own = {"identifiers": {SCHOOLS: {"district": "quarter"}}}
        words |= own if SCHOOLS in secondaries else {"features": {"drop": ["quarter"]}}
    return {key: value for key, value in words.items() if key not in ("policy", "serving")}


def _tls(stem: str) -> Words:
    return {"authority": "certs/ca.pem", "certificate": f"certs/{stem}.pem", "key": f"certs/{stem}.key"}


_started = itertools.count()


def free_ports() -> Iterator[int]:
    """Ports that nobody uses: below those that the system gives to callers, and apart for tests side by side."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = 20_000 + 1_000 * (worker % 12) + (os.getpid() * 37 + next(_started)) % 1_000
        with socket.socket() as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                door.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port


def toml(words: Mapping[str, Any], *above: str) -> str:
    """TOML of nested tables; JSON writes scalars and lists alike."""
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
    """SHA-256 of the newest checkpoint, its step, and the part of the model."""
    if (sealed := folder / "sealed.safetensors").is_file():  # a secondary under sealed labels trains nothing
        return hashlib.sha256(sealed.read_bytes()).hexdigest()
    last = max(folder.glob("checkpoints/**/step-*"), key=lambda path: path.name)
    digest = hashlib.sha256(last.name.encode())
    for path in (last, folder / "model" / "step-000000000"):
        digest.update((path / "tensors.safetensors").read_bytes())
    return digest.hexdigest()
