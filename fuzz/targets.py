"""Everything that reads bytes of others, as functions of bytes; an exception that a target does not expect is a defect.

A target accepts whatever comes and returns; errors of FedSim are the right answer to bad bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

import polars as pl

from fedsim.config.job import Job
from fedsim.config.party_file import PartyFile
from fedsim.data.table_reader import read_table
from fedsim.errors import FedSimError, WireError
from fedsim.protocol.bounds import ListSizes, MessageBounds
from fedsim.protocol.messages import KINDS, Party, Role
from fedsim.protocol.session import ConnectionState, Session
from fedsim.protocol.transport import Envelope, decode, encode, stream_pair
from fedsim.storage.tensor_file import load_tensors
from fedsim_lab.faults.hostile_frames import sample_message, seal_frame

FOLDER = Path(mkdtemp(prefix="fedsim-fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))  # noqa: S108
PARTIES = {
    Role.PRIMARY: Party(Role.PRIMARY, "city"),
    Role.SECONDARY: Party(Role.SECONDARY, "rentals"),
    Role.COORDINATOR: Party(Role.COORDINATOR, "notary"),
}
BOUNDS = MessageBounds.for_lists([ListSizes(n_bits=24, k=2)])
IDENT = bytes(16)


def frames(data: bytes) -> None:
    """A frame as it comes, and one whose checksums are right, so that what is behind them is reached."""
    for frame in (data, _sealed(data)):
        with suppress(WireError):
            BOUNDS.check(decode(frame).message)


def _sealed(data: bytes) -> bytes:
    """Take the bytes for a header and the rest of a frame, and compute the checksums."""
    length = int.from_bytes(data[:2], "little")
    return seal_frame(data[2 : 2 + length], data[2 + length :])


def session(data: bytes) -> None:
    """A conversation: every four bytes choose a message, its numbers and its place in the conversation."""
    kinds = list(KINDS.values())
    for party in PARTIES.values():
        sender = next(each for each in PARTIES.values() if each is not party)
        here = Session(ConnectionState(party, {}, {}, 0.0, bounds=BOUNDS), sender, IDENT)
        ours, theirs = stream_pair()
        here.attach(ours, 0)
        for place in range(0, min(len(data), 400) - 3, 4):
            kind, number, sequence, acknowledged = data[place : place + 4]
            message = sample_message(kinds[kind % len(kinds)].kind, number)
            theirs.send(encode(Envelope(message, IDENT, place // 4 + 1 + sequence // 85, acknowledged // 64)))
        theirs.close()
        here.read(ours)
        with suppress(FedSimError):
            while True:
                here.receive(0.0)


def job(data: bytes) -> None:
    """A job file."""
    with suppress(FedSimError):
        found = Job.read(_file("job.toml", data))
        assert Job.from_dict(found.to_dict()).hash == found.hash


def party(data: bytes) -> None:
    """A party file."""
    with suppress(FedSimError):
        PartyFile.read(_file("party.toml", data))


def table(data: bytes) -> None:
    """A CSV file, plain and packed, and a Parquet file."""
    for name in ("table.csv", "table.parquet"):
        with suppress(FedSimError):
            assert read_table(_file(name, data)).height


def tensors(data: bytes) -> None:
    """A file of arrays."""
    with suppress(FedSimError):
        load_tensors(_file("arrays.safetensors", data), "fedsim encoded table 1")


class _StubPredictor:
    columns = ("area",)
    coordinator_online = True
    context = SimpleNamespace(
        job=SimpleNamespace(name="fuzz"),
        party_file=SimpleNamespace(serving=SimpleNamespace(explain=False)),
        telemetry=None,
    )

    def online(self) -> dict[str, bool]:
        return {}

    def predict(self, records: pl.DataFrame) -> Any:
        return SimpleNamespace(values=[0.0] * len(records), probabilities=None, by="stub", away=(), reason="")


def http(data: bytes) -> None:
    """The body of a request for predictions."""
    reply = _client().post("/predict", content=data)
    assert reply.status_code < 500, reply.status_code


def _client() -> Any:
    if "http" not in _CLIENTS:
        from fastapi.testclient import TestClient  # noqa: PLC0415 - only here

        from fedsim.serving import create_app  # noqa: PLC0415

        headers = {"Authorization": "Bearer token", "Host": "localhost"}
        _CLIENTS["http"] = TestClient(create_app(_StubPredictor(), "token"), headers=headers)  # type: ignore[arg-type]
    return _CLIENTS["http"]


_CLIENTS: dict[str, Any] = {}


def _file(name: str, data: bytes) -> Path:
    path = FOLDER / name
    path.write_bytes(data)
    return path


TARGETS: dict[str, Callable[[bytes], None]] = {
    each.__name__: each for each in (frames, session, job, party, table, tensors, http)
}
