"""Everything that reads bytes of others, as functions of bytes; an exception that a target does not expect is a defect.

A target accepts whatever comes and returns; errors of FedSim are the right answer to bad bytes.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import torch

from fedsim.config.job import Job
from fedsim.config.party_file import PartyFile
from fedsim.data.table_reader import read_table
from fedsim.errors import FedSimError, PeerError, WireError
from fedsim.linkage.direct import NumberTokens, TextTokens, TokenField, TokenSchema, oprf
from fedsim.linkage.direct.encrypted_table import TABLE_FORMAT, EncryptedTable, build_table
from fedsim.linkage.direct.exchange import TokenEvaluator
from fedsim.linkage.direct.key_store import KeyStore
from fedsim.linkage.private_linkage import LinkageConfig
from fedsim.protocol.cut_layer import wire_format
from fedsim.protocol.handshake import SessionAcceptor, SessionConnector
from fedsim.protocol.messages import KINDS, Begin, Hello, Message, Party, Role, Welcome
from fedsim.protocol.roles.coordinator_role import Coordinator, LinkLimits
from fedsim.protocol.roles.primary_role import RemoteSecondary, evaluate_remotely, fetch_table
from fedsim.protocol.roles.secondary_role import RequestCounter, RequestLimits, RowMapping, SecondaryResponder
from fedsim.protocol.roles.table_role import TableFile, TableResponder
from fedsim.protocol.session import HANDSHAKE_MESSAGES, ConnectionState, PeerRestarted, Session
from fedsim.protocol.transport import (
    LAYOUTS,
    ConnectionLost,
    Envelope,
    Listener,
    ListSizes,
    MessageBounds,
    StreamHandler,
    decode,
    encode,
)
from fedsim.splitnn.layers import Features, Local
from fedsim.splitnn.party_model import AdamW
from fedsim.splitnn.secondary_model import LocalSecondary, SecondaryConfig, start_secondary
from fedsim.storage.tensor_file import load_tensors, save_tensors
from fedsim.types import AnyArray
from fedsim_lab.faults.hostile_frames import sample_message, seal_frame

FOLDER = Path(mkdtemp(prefix="fedsim-fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))  # noqa: S108
PARTIES = {
    Role.PRIMARY: Party(Role.PRIMARY, "city"),
    Role.SECONDARY: Party(Role.SECONDARY, "rentals"),
    Role.COORDINATOR: Party(Role.COORDINATOR, "notary"),
}
BOUNDS = MessageBounds.for_lists([ListSizes(n_bits=24, k=2)])
IDENT = bytes(16)

# Of a secondary without a coordinator
ROWS = 12
SCHEMA = TokenSchema((TokenField(("name",), TextTokens(samples=4)), TokenField(("size",), NumberTokens(width=5))))
RECORDS = {"name": [f"belgor marine {row // 2}" for row in range(ROWS)], "size": list(range(ROWS))}
SECRET, SCALAR = oprf.SecretKey.derive(bytes(32), b"fuzz"), (7).to_bytes(oprf.SCALAR_BYTES, "little")


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
    """Whole sessions from the greeting on: hostile parties speak to one in every role, then honest ones must get in."""
    role, script = data[:1], data[1:]
    match int.from_bytes(role, "little") % 3:
        case 0:
            _attack_listener(PARTIES[Role.PRIMARY], {PARTIES[Role.SECONDARY]: script}, _use_secondary, waiting=True)
        case 1:
            half = len(script) // 2
            scripts = {PARTIES[Role.SECONDARY]: script[:half], PARTIES[Role.PRIMARY]: script[half:]}
            rmtree(FOLDER / "lists", ignore_errors=True)
            coordinator = Coordinator(
                {"rentals": LinkageConfig("hamming", 2)}, bytes(32), FOLDER / "lists", limits=LinkLimits(50, 50)
            )
            _attack_listener(PARTIES[Role.COORDINATOR], scripts, coordinator.serve)
        case _:
            _attack_secondary(script, _secondary().serve)


def direct(data: bytes) -> None:
    """A job without a coordinator: a hostile primary, a hostile secondary, and files of encrypted tables."""
    role, script = data[:1], data[1:]
    rmtree(FOLDER / "direct", ignore_errors=True)
    match int.from_bytes(role, "little") % 4:
        case 0:
            _attack_secondary(script, _table_role().serve)
        case 1:
            _attack_listener(PARTIES[Role.PRIMARY], {PARTIES[Role.SECONDARY]: script}, _use_table, waiting=True)
        case 2:
            _open_table(_file("table.safetensors", script))
        case _:
            tensors, facts = _table_parts()
            for step in range(0, len(script), 5):
                _change_parts(tensors, facts, script[step : step + 5].ljust(5, b"\0"))
            save_tensors(FOLDER / "table.safetensors", TABLE_FORMAT, tensors, facts)
            _open_table(FOLDER / "table.safetensors")


def _state(party: Party) -> ConnectionState:
    """A party that waits for nobody; a frame that its own code fails on is a defect."""
    versions, job = {"fedsim": "1"}, {"name": "fuzz"}
    return ConnectionState(party, job, versions, 0.0, _refuse_defects, bounds=BOUNDS)


def _refuse_defects(event: str, facts: Mapping[str, Any]) -> None:
    assert "this party failed on it" not in str(facts.get("reason")), facts


def _hello(state: ConnectionState, instance: str) -> Hello:
    own = state.party
    return Hello(own.name, own.role.value, state.job_text, state.version_text, instance, "", 0, 0.0)


class _Script:
    """Connections whose other end sends what the bytes of the fuzzer say, until no byte is left."""

    def __init__(self, first: Hello | Welcome, sender: Party, receiver: Party, script: bytes) -> None:
        self._first, self._script, self._ident, self._sequence = first, script, IDENT, 0
        routes = [each for each in KINDS.values() if (sender.role, receiver.role) in each.routes]
        self._kinds = [each.kind for each in routes if each not in HANDSHAKE_MESSAGES]
        self._opening = self.closed = False
        self.answer: Message | None = None  # to the greeting, or the greeting

    @property
    def spent(self) -> bool:
        """Whether all bytes were used."""
        return not self._script

    def open(self) -> _Script:
        """Begin the next connection, which continues the session if there is one."""
        self._opening, self.closed, self.answer = True, False, None
        return self

    def send(self, frame: bytes) -> None:
        if self.answer is None:
            self.answer = message = decode(frame).message
            if isinstance(message, Welcome):
                self._ident, self._sequence = bytes.fromhex(message.session), message.received
                self._first = replace(self._first, resume=message.session)
            elif isinstance(message, Hello):
                self._sequence = message.received

    def receive(self) -> bytes:
        """Return the next frame: two bytes for how it is made and how long it is, then its content."""
        if self._opening:
            self._opening = False
            return encode(Envelope(self._first))
        if self.closed or self.spent:
            raise ConnectionLost
        how, length = (*self._script[:2], 0)[:2]
        content, self._script = self._script[2 : 2 + length], self._script[2 + length :]
        self._sequence += 1
        if how % 4 == 0:
            return content
        if how % 4 == 1:
            packed = content[1 : 1 + sum(content[:1])]
            return seal_frame(packed, content[1 + len(packed) :], self._ident, self._sequence)
        kind, place, number = self._kinds[(how >> 2) % len(self._kinds)], *(*content[:2], 0, 0)[:2]
        message = sample_message(kind, number) if how % 4 == 2 else _likely_message(kind, content[1:])
        return encode(Envelope(message, self._ident, self._sequence + place // 85, reply_to=place % 85))

    def close(self) -> None:
        self.closed = True


def _likely_message(kind: str, content: bytes) -> Message:
    """Return a message that fits the job: the bytes choose small numbers, sizes and the numbers in arrays."""
    layout, numbers = LAYOUTS[kind], cycle(content or b"\0")
    likely = {"n_bits": 24, "partner_list": "rentals", "fingerprint": "fuzz", "phase": "join"}
    drawn = {"whole": lambda: next(numbers) % 16 - 1, "number": lambda: float(next(numbers))}
    drawn |= {"text": lambda: "x" * (next(numbers) % 3), "flag": lambda: next(numbers) % 2 == 1}
    facts = {name: likely[name] if name in likely else drawn[slot]() for name, slot in layout.facts.items()}
    sizes = {"K": 2, "F": 1, "b": 3, "C": 2, "e": oprf.ELEMENT_BYTES, "z": oprf.PROOF_BYTES, "B": 1}
    arrays = {}
    for name, shape in layout.arrays.items():
        size = tuple(sizes.setdefault(letter, next(numbers) % 12 + (letter != "s")) for letter in shape.letters)
        values = np.array(list(islice(numbers, math.prod(size))), np.int16) - next(numbers) % 4
        arrays[name] = values.reshape(size).astype(shape.dtypes[0])
    if kind == "evaluate" and next(numbers) % 2:  # what a secondary evaluates
        points = b"".join(oprf.blind((row.tobytes(), SCALAR) for row in arrays["blinded"]))
        arrays["blinded"] = np.frombuffer(points, np.uint8).reshape(arrays["blinded"].shape)
    return KINDS[kind](**facts, **arrays)


def _attack_listener(
    own: Party, scripts: Mapping[Party, bytes], serve: Callable[[Session], object], *, waiting: bool = False
) -> None:
    """Hostile parties connect, one after the other; what they sent is served, and each comes again in earnest."""
    acceptor = SessionAcceptor(_state(own), list(scripts))
    for peer, data in scripts.items():
        script = _Script(_hello(_state(peer), "hostile"), peer, own, data)
        while not script.spent:
            acceptor.answer(peer, script.open())
            assert isinstance(script.answer, Welcome), script.answer
    for each in acceptor.sessions():
        if not waiting:  # else the coordinator would wait for another party for ever
            each.end(PeerError("the party has left", code="left"))
        _serve_all(each, serve)
    for peer in scripts:
        honest = _Script(_hello(_state(peer), "honest"), peer, own, b"")
        acceptor.answer(peer, honest.open())
        assert isinstance(honest.answer, Welcome), honest.answer


def _attack_secondary(data: bytes, serve: Callable[[Session], object]) -> None:
    """A hostile primary accepts the secondary's connections, then an honest one does."""
    own, peer = PARTIES[Role.SECONDARY], PARTIES[Role.PRIMARY]
    script = _Script(Welcome(IDENT.hex(), sum(data[:1]) // 250, "", 0.0), peer, own, data[1:])
    with suppress(FedSimError):
        session = SessionConnector(_state(own), _Dialled(script), "address", peer).open()
        while not session.is_over and not session.peer_finished:  # a thread keeps it connected until nobody answers
            time.sleep(0)
        _serve_all(session, serve)
    honest = _Script(Welcome(IDENT.hex(), 0, "{}", 0.0), peer, own, b"\0")
    assert SessionConnector(_state(own), _Dialled(honest), "address", peer).open().ident == IDENT


@dataclass(frozen=True)
class _Dialled:
    """A transport that leads to a script as long as there is anything in it."""

    script: _Script

    def listen(self, address: str, answer: StreamHandler) -> Listener:
        raise NotImplementedError

    def dial(self, address: str, peer: Party) -> _Script:
        if self.script.spent:
            raise ConnectionLost
        return self.script.open()


def _serve_all(session: Session, serve: Callable[[Session], object]) -> None:
    """Have a role answer everything that arrived; what it refuses is passed over."""
    while session.unread:
        with suppress(FedSimError, PeerRestarted):
            serve(session)


def _use_secondary(session: Session) -> None:
    """What a primary asks of a secondary, whatever it answers."""
    remote = RemoteSecondary(session, wire_format("float32"))
    rows = torch.arange(3)
    remote.begin(1)
    remote.activations(rows, 0)
    remote.infer(rows)
    remote.embed(rows.int().numpy())


def _secondary() -> SecondaryResponder:
    """A secondary with nine records, small networks and small limits."""
    features = Features(np.arange(18, dtype=np.float32).reshape(9, 2))
    config = SecondaryConfig(Local(hidden=(3,), cut=2), AdamW(rate=1e-3), seed=0)

    def start(begin: Begin | None = None) -> LocalSecondary:
        return start_secondary("rentals", features, config, total_steps=begin.total_steps if begin else 1)

    limits = RequestLimits(total_steps=9, steps=9, inferences=9, rows_per_step=9, new_records=9)
    order = RowMapping(np.arange(9, dtype=np.int32), np.zeros(32, np.uint8), 3)
    return SecondaryResponder(
        width=2,
        order=order,
        requests=RequestCounter(limits),
        start=start,
        load_trained=start,
        finish=lambda party: None,
        on_new_rows=lambda rows: None,
        on_farewell=lambda: None,
        form=wire_format("float32"),
    )


def _table_role() -> TableResponder:
    """A secondary with a table of twelve rows."""
    path, keys = FOLDER / "direct" / "table.safetensors", KeyStore(FOLDER / "direct" / "keys")
    path.parent.mkdir()
    _built().save(path)
    keys.create("rentals", datetime.now(UTC), SECRET)
    file = TableFile(path, hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size, ROWS, 2)
    return TableResponder(
        table=file,
        evaluator=TokenEvaluator(keys, "rentals", 1000),
        on_table=lambda: None,
        on_evaluation=lambda tokens: None,
        on_finish=lambda: None,
    )


def _use_table(session: Session) -> None:
    """What a primary asks of a secondary without a coordinator, whatever it answers."""
    path = FOLDER / "direct" / "fetched.safetensors"
    with suppress(FedSimError):
        fetch_table(session, path)
        _open_table(path)
    blinded = oprf.random_elements(16)
    for part in evaluate_remotely(session, blinded):
        oprf.verify(SECRET.public, blinded, part)
        raise AssertionError("a proof without the key")


@cache
def _built() -> EncryptedTable:
    vectors = np.arange(2 * ROWS, dtype=np.float32).reshape(ROWS, 2)
    return replace(build_table(SCHEMA, RECORDS, vectors, SECRET), owner="rentals")


@cache
def _values() -> list[list[bytes]]:
    """The values of all tokens of the table, by field."""
    tokens = [np.unique(of.tokens.token).tolist() for of in SCHEMA.row_tokens(RECORDS)]
    return [SECRET.evaluate(SCHEMA.inputs(place, of)) for place, of in enumerate(tokens)]


def _opened(table: EncryptedTable) -> dict[int, bytes]:
    entries = [table.open(place, values) for place, values in enumerate(_values())]
    rows, vectors = table.open_vectors(entries)
    return {row: vector.tobytes() for row, vector in zip(rows.tolist(), vectors, strict=True)}


def _open_table(path: Path) -> None:
    """A primary that knows all tokens opens rows of the table as it was built, and no others."""
    with suppress(FedSimError):
        found = _opened(EncryptedTable.load(path, SCHEMA))
        assert found.items() <= _opened(_built()).items()


def _table_parts() -> tuple[dict[str, AnyArray], dict[str, str]]:
    path = FOLDER / "built.safetensors"
    _built().save(path)
    return load_tensors(path, TABLE_FORMAT)


def _change_parts(tensors: dict[str, AnyArray], facts: dict[str, str], change: bytes) -> None:
    """Change an array or a fact of a table as its owner could: the digest will be right."""
    how, which, place, value = change[0], change[1], int.from_bytes(change[2:4], "little"), change[4]
    if not tensors:
        return
    name, fact = sorted(tensors)[which % len(tensors)], sorted(facts)[which % len(facts)]
    array = np.array(tensors[name])
    match how % 8:
        case 0 | 1 if array.size:
            array.reshape(-1)[place % array.size] = value
            tensors[name] = array
        case 2:
            tensors[name] = array[place % (len(array) + 1) :]
        case 3:
            tensors[name] = array.astype((np.uint8, np.uint64, np.float32, np.bool_)[value % 4])
        case 4:
            tensors[name] = array.reshape(-1) if array.ndim > 1 else array[:, np.newaxis]
        case 5:
            tensors[name] = np.roll(array, value, axis=0)
        case 6:
            del tensors[name]
        case _:
            facts[fact] = ("", "2", facts[fact][: value % 40], facts[fact][::-1], "\x1b" * value)[place % 5]


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

        from fedsim_ops.service import create_app  # noqa: PLC0415

        headers = {"Authorization": "Bearer token", "Host": "localhost"}
        _CLIENTS["http"] = TestClient(create_app(_StubPredictor(), "token"), headers=headers)  # type: ignore[arg-type]
    return _CLIENTS["http"]


_CLIENTS: dict[str, Any] = {}


def _file(name: str, data: bytes) -> Path:
    path = FOLDER / name
    path.write_bytes(data)
    return path


TARGETS: dict[str, Callable[[bytes], None]] = {
    each.__name__: each for each in (frames, session, direct, job, party, table, tensors, http)
}
