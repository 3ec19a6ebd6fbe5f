"""Predictions over HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from fedsim.serving import create_app
from prediction_fixtures import SOLO, World


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    there = World(tmp_path, getattr(request, "param", {}))
    yield there
    there.close()


def ask(client: TestClient, records: list[dict[str, object]], **headers: str) -> tuple[int, dict[str, object]]:
    reply = client.post("/predict", json={"records": records}, headers=headers)
    return reply.status_code, reply.json()


def test_the_service_answers_single_records_and_says_who_is_there(world):
    world.bring("notary"), world.bring("rentals")
    client = TestClient(create_app(world.predictor()))
    status, answer = ask(client, world.records[:2].to_dicts())
    assert (status, answer["by"], len(answer["predictions"])) == (200, "fedsim", 2)
    assert client.get("/health").json() == {"status": "ok", "coordinator": True, "secondaries": {"rentals": True}}


def test_the_service_knows_who_is_away_before_anybody_asks(world):
    predictor = world.predictor(wait_seconds=0.2)
    client = TestClient(create_app(predictor))
    assert client.get("/health").json() == {
        "status": "partial",
        "coordinator": False,
        "secondaries": {"rentals": False},
    }
    world.bring("notary")
    threading.Thread(target=predictor.keep_dialling, daemon=True).start()
    deadline = time.monotonic() + 20
    while not client.get("/health").json()["coordinator"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_record_that_breaks_a_rule_is_refused_before_anybody_is_waited_for(world):
    predictor = world.predictor(wait_seconds=600)
    client = TestClient(create_app(predictor))
    assert ask(client, [{**world.records[:1].to_dicts()[0], "area": "large"}])[0] == 422


def test_the_service_tells_what_is_wrong_with_a_question(world):
    world.bring("notary"), world.bring("rentals")
    client = TestClient(create_app(world.predictor()))
    assert ask(client, [{"lat": 1.3}])[0] == 422
    assert ask(client, [])[0] == 422
    bad = {**world.records[:1].to_dicts()[0], "area": "large"}
    status, answer = ask(client, [bad])
    assert status == 422
    assert "area" in str(answer)
    assert "large" not in str(answer)


@pytest.mark.parametrize("world", [{"city": SOLO}], indirect=True)
def test_the_service_is_unavailable_while_a_partner_is_away(world):
    world.bring("notary")
    client = TestClient(create_app(world.predictor(wait_seconds=0.5)))
    status, answer = ask(client, world.records[:1].to_dicts())
    assert status == 503
    assert "rentals" in str(answer["detail"])


def test_a_token_is_asked_for_where_there_is_one(world):
    client = TestClient(create_app(world.predictor(wait_seconds=0.2), token="a-token-of-24-characters"))  # noqa: S106
    record = world.records[:1].to_dicts()
    assert ask(client, record)[0] == 401
    assert ask(client, record, Authorization="Bearer wrong")[0] == 401
    assert ask(client, record, Authorization="Bearer a-token-of-24-characters")[0] == 200


def test_the_page_loads_nothing_from_elsewhere(world):
    client = TestClient(create_app(world.predictor(wait_seconds=0.2)))
    page = client.get("/").text
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert list(client.get("/openapi.json").json()["x-example"]) == ["lat", "lon", "area", "storey", "age"]
