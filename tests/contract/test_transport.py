"""What every transport must keep; add yours to ``WAYS`` and it is held to all of it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import ClassVar

import pytest

from e2e.party_threads import run_in_threads
from error_fixtures import raises
from fedsim.errors import SettingError
from fedsim.protocol import grpc_transport as grpc
from fedsim.protocol.grpc_transport import CHUNK_BYTES, GrpcTransport
from fedsim.protocol.handshake import SessionAcceptor, SessionConnector
from fedsim.protocol.messages import Done, KeepBest, Party, Role, Save
from fedsim.protocol.transport import ConnectionLost, InProcessTransport
from fedsim.registry import TRANSPORTS
from fedsim.runtime.party_context import open_transport
from fedsim_lab.faults.local_job import create_local_job
from relay_fixtures import relay_in_thread
from session_fixtures import CITY, NOTARY, PATIENCE, RENTALS, connection_of, frame_of
from tls_fixtures import CREDENTIALS, echo, large


@pytest.fixture(autouse=True)
def _no_greeting(monkeypatch):
    """These lines carry large frames from the start; between parties the first is a greeting."""
    monkeypatch.setattr(grpc, "FIRST_BYTES", 1 << 30)


class Way:
    """A transport of the listening city and one of each of its callers."""

    def __init__(self, name, address, of, proves):
        self.name, self.address, self.of, self.proves = name, address, of, proves


def in_process():
    everybody = InProcessTransport()
    return Way("in process", "endpoint", lambda party: everybody, proves=False)


def plaintext():
    return Way("gRPC in plaintext", "127.0.0.1:0", lambda party: GrpcTransport(None), proves=False)


def mutual_tls():
    return Way("gRPC with TLS", "127.0.0.1:0", lambda party: GrpcTransport(CREDENTIALS[party]), proves=True)


@pytest.fixture(scope="module")
def hub():
    with relay_in_thread() as address:
        yield address


def through_relay(hub):
    return Way("gRPC through a relay", hub, lambda party: GrpcTransport(CREDENTIALS[party]), proves=True)


WAYS = [in_process, plaintext, mutual_tls, through_relay]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def way(request):
    return through_relay(request.getfixturevalue("hub")) if request.param is through_relay else request.param()


@contextmanager
def listening(way, answer=None):
    """Listen as the city and yield the address."""
    listener = way.of(CITY).listen(way.address, answer or echo)
    try:
        yield listener.address
    finally:
        listener.close()


@contextmanager
def echoing(way, caller=RENTALS):
    """A connection to a listener that echoes every frame."""
    with listening(way) as address:
        line = way.of(caller).dial(address, CITY)
        yield line
        line.close()


# --- the contract ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "n_bytes", [64, 100_000, CHUNK_BYTES - 200, CHUNK_BYTES, CHUNK_BYTES + 8, 2 * CHUNK_BYTES, 9_000_000]
)
def test_a_frame_of_any_size_arrives_whole(way, n_bytes):
    with echoing(way) as line:
        line.send(large(n_bytes))
        assert line.receive() == large(n_bytes)


def test_frames_arrive_in_order(way):
    frames = [frame_of(Save(step), step) for step in range(1, 1001)]
    with echoing(way) as line:
        for frame in frames:
            line.send(frame)
        assert [line.receive() for _ in frames] == frames


def test_large_and_small_frames_keep_their_order(way):
    frames = [frame_of(KeepBest(), 1), large(5_000_000), frame_of(KeepBest(), 2), large(3_000_000)]
    with echoing(way) as line:
        for frame in frames:
            line.send(frame)
        assert [line.receive() for _ in frames] == frames


def test_a_door_that_closes_breaks_the_lines_of_those_who_came_in(way):
    listener = way.of(CITY).listen(way.address, echo)
    line = way.of(RENTALS).dial(listener.address, CITY)
    line.send(frame_of(KeepBest(), 1))
    line.receive()
    listener.close()
    with pytest.raises(ConnectionLost):
        line.receive()
    line.close()


def test_a_line_that_one_side_lets_go_breaks_at_the_other(way):
    broke = threading.Event()

    def answer(_, line):
        with pytest.raises(ConnectionLost):
            line.receive()
        broke.set()

    with listening(way, answer) as address:
        way.of(RENTALS).dial(address, CITY).close()
        assert broke.wait(PATIENCE)


def test_a_line_that_the_receiver_lets_go_breaks_at_the_caller(way):
    with listening(way, lambda _, line: line.close()) as address:
        line = way.of(RENTALS).dial(address, CITY)
        with pytest.raises(ConnectionLost):
            line.receive()


@pytest.mark.parametrize("size", [64, 6_000_000])
def test_the_last_words_of_either_side_arrive(way, size):
    heard = []

    def answer(_, line):
        heard.append(line.receive())
        line.send(large(size))
        line.close()

    with listening(way, answer) as address:
        line = way.of(RENTALS).dial(address, CITY)
        line.send(large(size))
        assert line.receive() == large(size)
        with pytest.raises(ConnectionLost):
            line.receive()
    assert heard == [large(size)]


def test_what_a_caller_said_before_it_left_arrives(way):
    heard, done = [], threading.Event()

    def answer(_, line):
        with suppress(ConnectionLost):
            while True:
                heard.append(line.receive())
        done.set()

    with listening(way, answer) as address:
        line = way.of(RENTALS).dial(address, CITY)
        for step in range(20):
            line.send(frame_of(Save(step)))
        line.close()
        assert done.wait(PATIENCE)
    assert heard == [frame_of(Save(step)) for step in range(20)]


def test_nothing_goes_out_on_a_line_that_was_let_go(way):
    with echoing(way) as line:
        line.close()
        line.close()
        with pytest.raises(ConnectionLost):
            line.send(frame_of(KeepBest()))


def test_lines_do_not_mix(way):
    with listening(way) as address:
        lines = [way.of(caller).dial(address, CITY) for caller in (RENTALS, NOTARY)]
        for place, line in enumerate(lines):
            line.send(frame_of(Save(place)))
        assert [line.receive() for line in lines] == [frame_of(Save(0)), frame_of(Save(1))]
        lines[0].close()
        lines[1].send(frame_of(Save(2)))
        assert lines[1].receive() == frame_of(Save(2))
        lines[1].close()


def test_where_nobody_listens_there_is_no_line_yet(way):
    with listening(way) as address:
        pass
    with pytest.raises(ConnectionLost) as fault:
        way.of(RENTALS).dial(address, CITY)
    assert not fault.value.lasting
    assert address.removeprefix("relay://") in str(fault.value)


def test_an_address_is_taken_once_and_free_again_afterwards(way):
    with listening(way) as address, raises(SettingError, "address-in-use"):
        way.of(CITY).listen(address, echo)
    way.of(CITY).listen(address, echo).close()


def test_the_caller_is_who_its_certificate_proves_or_nobody(way):
    callers = []
    with listening(way, lambda caller, line: (callers.append(caller), line.close())) as address:
        for caller in (RENTALS, NOTARY):
            with pytest.raises(ConnectionLost):
                way.of(caller).dial(address, CITY).receive()
    assert callers == ([RENTALS, NOTARY] if way.proves else [None, None])


def test_a_conversation_goes_on_over_new_lines(way):
    acceptor, lines = SessionAcceptor(connection_of(CITY), [RENTALS]), []
    transport = way.of(RENTALS)

    class Kept:
        def dial(self, address, peer):
            lines.append(transport.dial(address, peer))
            return lines[-1]

    with listening(way, acceptor.answer) as address, ThreadPoolExecutor() as pool:
        there = SessionConnector(connection_of(RENTALS), Kept(), address, CITY).open()
        here = acceptor.session_with(RENTALS)
        for step in range(4):
            answer = pool.submit(here.call, Save(step), Done)
            question = there.receive()
            lines[-1].close()
            there.send(Done(str(question.message.step)), reply_to=question.sequence)
            assert answer.result(PATIENCE).fault == str(step)
        there.close()
        here.close()
    assert len(lines) >= 4


# --- a transport from outside ------------------------------------------------------------------------------------


class OutsideTransport:
    """A transport that FedSim does not know: it shares the streams of another one and counts its calls."""

    streams = InProcessTransport()
    dialled: ClassVar[list[Party]] = []

    def __init__(self, credentials):
        self.credentials = credentials

    def listen(self, address, answer):
        return self.streams.listen(address, answer)

    def dial(self, address, peer):
        self.dialled.append(peer)
        return self.streams.dial(address, peer)


def test_a_transport_registered_from_outside_carries_a_job(tmp_path):
    with TRANSPORTS.temporarily("outside", OutsideTransport):
        place = create_local_job(tmp_path / "job")
        ledgers = run_in_threads(place, lambda own: open_transport(own, name="outside"))
    assert {peer.role for peer in OutsideTransport.dialled} == {Role.COORDINATOR, Role.PRIMARY}
    assert all(any(entry.kind == "welcome" for entry in entries) for entries in ledgers.values())


def test_the_environment_names_a_transport_that_is_not_registered(tmp_path, monkeypatch):
    place = create_local_job(tmp_path / "job")
    own = place.own(place.names[0])
    monkeypatch.setenv("FEDSIM_TRANSPORT", f"{__name__}:OutsideTransport")
    transport = open_transport(own)
    assert isinstance(transport, OutsideTransport)
    assert transport.credentials is not None
    assert open_transport(own, insecure=True).credentials is None


def test_an_unknown_transport_is_an_error(tmp_path):
    place = create_local_job(tmp_path / "job")
    with raises(SettingError, "unknown-transport"):
        open_transport(place.own(place.names[0]), name="grcp")
