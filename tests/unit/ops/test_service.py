"""Predictions over HTTP."""

from __future__ import annotations

import resource
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import uvicorn
from fastapi.testclient import TestClient

from fedsim.runtime.predictor import Predictions, Predictor
from fedsim.training import explain
from fedsim.training.explain import Matches
from fedsim_ops import service
from fedsim_ops.connection_guard import ConnectionGuard
from fedsim_ops.service import create_app
from prediction_fixtures import SOLO, World
from session_fixtures import PATIENCE, until

TOKEN = "a-token-of-24-characters"  # noqa: S105
AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    there = World(tmp_path, getattr(request, "param", {}))
    yield there
    there.close()


def client_of(predictor: Predictor, **headers: str) -> TestClient:
    """A client that addresses the service by an IP address, with the token unless it says otherwise."""
    return TestClient(create_app(predictor, TOKEN), base_url="http://127.0.0.1:8000", headers=headers or AUTHORISED)


def ask(client: TestClient, records: list[dict[str, object]], **headers: str) -> tuple[int, dict[str, object]]:
    reply = client.post("/predict", json={"records": records}, headers=headers)
    return reply.status_code, reply.json()


EXPLAIN = {'when_partner_is_away = "solo"': 'when_partner_is_away = "solo"\nexplain = true'}
WATCHED = {"[serving]": '[telemetry]\nmetrics = "127.0.0.1:0"\n[serving]'}


def samples(predictor: Predictor) -> dict[tuple[str, ...], object]:
    return {(sample.name, *sample.labels): sample.value for sample in predictor.context.telemetry.samples()}


@pytest.mark.parametrize("world", [{"city": WATCHED}], indirect=True)
def test_a_watched_service_counts_requests(world):
    world.bring("notary"), world.bring("rentals")
    predictor = world.predictor()
    client = client_of(predictor)
    assert ask(client, world.records[:80].to_dicts())[0] == 200
    assert ask(client, [{"area": 1}])[0] == 422
    assert ask(client, [], Authorization="Bearer nothing")[0] == 401
    assert client.get("/secret-place").status_code == 404
    assert ask(client, world.records[80:].to_dicts())[0] == 200
    found = samples(predictor)
    assert found["fedsim_phase", "predict"] == found["fedsim_peer_connected", "rentals", "secondary"] == 1
    assert found["fedsim_requests_total", "/predict", "200"] == 2
    assert found["fedsim_requests_total", "other", "404"] == 1
    assert found["fedsim_refused_total", "missing-column"] == found["fedsim_refused_total", "http-401"] == 1
    assert found["fedsim_requests_in_progress",] == 0
    assert found["fedsim_request_seconds",].buckets()[-1] == ("+Inf", 4)
    assert found["fedsim_predicted_records_total", "fedsim"] == len(world.records)


@pytest.mark.parametrize("world", [{"city": EXPLAIN}], indirect=True)
def test_the_service_answers_single_records_and_says_who_is_there(world):
    world.bring("notary"), world.bring("rentals")
    client = client_of(world.predictor())
    asked = {"records": world.records[:1].to_dicts(), "explain": True}
    (explained,) = client.post("/predict", json=asked).json()["explanations"]
    effects = [partner["effect"] for partner in explained["partners"]]
    assert explained["average"] + sum(effects) == pytest.approx(explained["prediction"])
    assert set(explained["columns"]) == {"area", "storey", "age"}
    status, answer = ask(client, world.records[:2].to_dicts())
    assert (status, answer["by"], len(answer["predictions"])) == (200, "fedsim", 2)
    assert all(
        low <= value <= high for value, (low, high) in zip(answer["predictions"], answer["intervals"], strict=True)
    )
    assert client.get("/health").json() == {"status": "ok", "coordinator": True, "secondaries": {"rentals": True}}


def test_matches_are_returned(world, monkeypatch):
    world.bring("notary"), world.bring("rentals")
    match = Matches("rentals", np.zeros((2, 1), np.int64), np.ones((2, 1)))  # places have no match gate
    monkeypatch.setattr(explain, "find_matches", lambda *_: [match])
    found = world.predictor().predict(world.records[:2]).matches
    assert found == (match,)


def test_the_service_knows_who_is_away_before_anybody_asks(world):
    predictor = world.predictor(wait_seconds=0.2)
    client = client_of(predictor)
    assert client.get("/health").json() == {
        "status": "partial",
        "coordinator": False,
        "secondaries": {"rentals": False},
    }
    world.bring("notary")
    threading.Thread(target=predictor.keep_dialling, daemon=True).start()
    until(lambda: client.get("/health").json()["coordinator"])


def test_a_record_that_breaks_a_rule_is_refused_before_anybody_is_waited_for(world):
    predictor = world.predictor(wait_seconds=600)
    client = client_of(predictor)
    assert ask(client, [{**world.records[:1].to_dicts()[0], "area": "large"}])[0] == 422


def test_the_service_tells_what_is_wrong_with_a_question(world):
    world.bring("notary"), world.bring("rentals")
    client = client_of(world.predictor())
    assert ask(client, [{"lat": 1.3}])[0] == 422
    assert ask(client, [])[0] == 422
    asked = {"records": world.records[:1].to_dicts(), "explain": True}
    assert client.post("/predict", json=asked).status_code == 422  # its owner did not allow explanations
    bad = {**world.records[:1].to_dicts()[0], "area": "large"}
    status, answer = ask(client, [bad])
    assert status == 422
    assert "area" in str(answer)
    assert "large" not in str(answer)


@pytest.mark.parametrize("world", [{"city": SOLO}], indirect=True)
def test_the_service_is_unavailable_while_a_partner_is_away(world):
    world.bring("notary")
    client = client_of(world.predictor(wait_seconds=0.5))
    status, answer = ask(client, world.records[:1].to_dicts())
    assert status == 503
    assert "rentals" in str(answer["detail"])


def test_a_token_is_asked_for_where_there_is_one(world):
    client = client_of(world.predictor(wait_seconds=0.2), Accept="*/*")
    record = world.records[:1].to_dicts()
    assert ask(client, record)[0] == 401
    assert ask(client, record, Authorization="Bearer wrong")[0] == 401
    assert ask(client, record, **AUTHORISED)[0] == 200


def test_the_page_loads_nothing_from_elsewhere(world):
    client = client_of(world.predictor(wait_seconds=0.2))
    page = client.get("/").text
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert client.get("/openapi.json").json()["x-columns"] == ["lat", "lon", "area", "storey", "age"]


class Stub:
    """A predictor that has nothing to do with parties."""

    columns = ("salary",)
    coordinator_online = True
    context = SimpleNamespace(
        job=SimpleNamespace(name="pay"),
        party_file=SimpleNamespace(serving=SimpleNamespace(explain=False)),
        telemetry=None,
    )

    def online(self) -> dict[str, bool]:
        return {"bank": True}

    def predict(self, records: pl.DataFrame, *, explained: bool) -> Predictions:
        return Predictions([0.0] * len(records), None, (), "stub")


@pytest.fixture
def stranger() -> TestClient:
    return client_of(Stub(), Accept="*/*")


def test_without_the_token_nobody_learns_columns_or_parties(stranger: TestClient) -> None:
    assert stranger.get("/health").json() == {"status": "ok", "coordinator": None, "secondaries": None}
    seen = [stranger.get(path) for path in ("/", "/docs", "/openapi.json", "/predict", "/nowhere")]
    assert [reply.status_code for reply in seen] == [200, 200, 200, 401, 401]
    assert not any(word in reply.text for reply in seen for word in ("salary", "bank"))


def test_the_token_is_checked_before_a_byte_of_the_body_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(service, "_read_body", read)
    assert client_of(Stub(), Accept="*/*").post("/predict", content=b"x" * 10**6).status_code == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", ""]
)
def test_another_host_name_is_refused(host: str) -> None:
    client = client_of(Stub(), **AUTHORISED, Host=host)
    assert client.get("/health").status_code == 403


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "[::1]:8000", "10.1.2.3", "models.example:8000"])
def test_addresses_and_names_that_the_owner_allowed_are_served(host: str) -> None:
    app = create_app(Stub(), TOKEN, hosts=["models.example"])
    assert TestClient(app, headers={"Host": host}).get("/health").status_code == 200


def test_a_body_that_is_too_long_is_refused_whether_or_not_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_BODY_BYTES", 1000)
    client = client_of(Stub())
    assert client.post("/predict", content=b"x" * 2000).status_code == 413
    assert client.post("/predict", content=(b"x" * 100 for _ in range(20))).status_code == 413
    assert client.post("/predict", content=b"{}", headers={"Content-Length": "9" * 40}).status_code == 413


MANY_KEYS = b",".join(b'"%x":[]' % key for key in range(600_000))
ESCAPED = b'"\\\\\\"":1,' + MANY_KEYS  # a key that ends with a quote
BOMBS = {
    "keys": b'{"records":[{%s}]}' % MANY_KEYS,
    "keys after an escaped quote": b'{"records":[{%s}]}' % ESCAPED,
    "the same key": b'{"records":[{%s}]}' % b",".join([b'"a":1'] * 600_000),
    "keys in UTF-16": b'{"records":[{%s}]}'.decode().replace("%s", MANY_KEYS.decode()).encode("utf-16"),
    "keys of the request": b"{%s}" % MANY_KEYS,
    "records": b'{"records":[%s]}' % b",".join([b"{}"] * 600_000),
    "numbers": b'{"records":[%s]}' % b",".join([b"1.5"] * 600_000),
    "faults": b'{"records":[%s]}' % b",".join([b"{%s}" % b",".join(b'"%x":1e999' % n for n in range(100))] * 600),
    "a long key": b'{"records":[{"%s":[]}]}' % (b"x" * (7 << 20)),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_request_cannot_take_a_hundred_megabytes_nor_a_long_answer(bomb: str) -> None:
    client = client_of(Stub(), **AUTHORISED, **JSON)
    tracemalloc.start()
    reply = client.post("/predict", content=BOMBS[bomb])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reply.status_code in (413, 422)
    assert len(reply.content) < 10_000
    assert peak < 100 << 20


def test_only_the_first_faults_of_one_record_are_returned() -> None:
    record = {f"column{number}": {} for number in range(3)}
    faults = client_of(Stub()).post("/predict", json={"records": [{"salary": 1}, record, record]}).json()["detail"]
    assert len(faults) <= service.MAX_FAULTS
    assert {fault["loc"][2] for fault in faults} == {1}


def test_as_many_keys_as_the_limit_allows_are_read() -> None:
    record = {"salary": 1, 'a "{[:," name\\': "with, {marks: [in it]}"}
    record |= {f"column{number}": "x" for number in range(service.MAX_OTHER_KEYS - 1)}
    client = client_of(Stub())
    assert ask(client, [record] * service.MAX_RECORDS)[0] == 200
    assert ask(client, [record | {"more": 1}])[0] == 413


NUMBERS = ["1" + "0" * 400, "1e400", "NaN", "-Infinity", "1" * 5000, "[]", '{"a": 1}']


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_that_no_column_holds_is_the_clients_fault(number: str) -> None:
    client = client_of(Stub())
    reply = client.post("/predict", content=f'{{"records": [{{"salary": {number}}}]}}', headers=JSON)
    assert reply.status_code in (400, 422)
    assert number not in reply.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[" * 10**5,
        b"\xff\xfe",
        b'{"records": [{"salary": "\\ud800"}]}',
        b"null",
        b'{"records": [{"\\ud800": []}]}',
    ],
)
def test_a_body_that_makes_no_sense_is_the_clients_fault(body: bytes) -> None:
    assert client_of(Stub()).post("/predict", content=body, headers=JSON).status_code in (400, 413, 422)


@contextmanager
def running(guard_limit: int) -> Iterator[tuple[str, int]]:
    """The service at a port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        guard = ConnectionGuard(listener.getsockname()[1], guard_limit)
        app = create_app(Stub(), TOKEN, guard=guard)
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", http="h11", ws="none"))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        guard.start()
        thread.start()
        until(lambda: server.started)
        try:
            yield listener.getsockname()
        finally:
            guard.stop()
            server.should_exit = True
            thread.join(PATIENCE)


@pytest.fixture
def _few_descriptors() -> Iterator[None]:
    """Descriptors for a thousand callers, and only 200 more for the service that they call."""
    before, used = resource.getrlimit(resource.RLIMIT_NOFILE), len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1200, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("_few_descriptors")
def test_a_thousand_half_open_requests_are_survived() -> None:
    with running(64) as address, ExitStack() as open_requests:
        for _ in range(1000):
            with suppress(OSError):
                line = open_requests.enter_context(socket.create_connection(address, timeout=5))
                line.sendall(b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Le")
        until(lambda: is_healthy(address))


def is_healthy(address: tuple[str, int]) -> bool:
    """Whether a newcomer is served, who may have to try again."""
    with suppress(OSError), socket.create_connection(address, timeout=30) as honest:
        honest.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        return honest.recv(100).startswith(b"HTTP/1.1 200")
    return False


def test_a_body_that_does_not_arrive_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "BODY_SECONDS", 0.1)
    with running(64) as address, socket.create_connection(address, timeout=PATIENCE) as slow:
        head = (
            f"POST /predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n\r\n"
        )
        slow.sendall(head.encode())
        assert slow.recv(100).startswith(b"HTTP/1.1 408")
