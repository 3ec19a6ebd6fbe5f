"""The coordinator of a job, with the other parties in threads of this process."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from error_fixtures import raises
from fedsim.errors import PeerError
from fedsim.protocol.messages import Role
from fedsim.runtime.party_context import open_party_context, software_versions
from fedsim_ops.service import create_app
from job_fixtures import lay_out, read_all

LIMIT = {"notary": {"[tls]": "[policy]\nmax_new_records = 7\n\n[tls]"}}


@pytest.mark.parametrize("world", [LIMIT], indirect=True)
def test_the_coordinator_links_no_more_new_records_than_its_policy_allows(world):
    world.bring("notary"), world.bring("rentals")
    predictor = world.predictor()
    predictor.predict(world.records[:5])
    with raises(PeerError, "not-linked"):
        predictor.predict(world.records[5:8])
    token = "a-token-of-24-characters"  # noqa: S105
    allowed = {"Authorization": f"Bearer {token}"}
    client = TestClient(create_app(predictor, token), base_url="http://127.0.0.1:8000", headers=allowed)
    reply = client.post("/predict", json={"records": world.records[5:8].to_dicts()})
    assert reply.status_code == 502  # not away: it refuses
    assert len(predictor.predict(world.records[3:7]).values) == 4


def test_a_party_with_another_job_does_not_stop_those_who_stay(world, tmp_path):
    notary = world.bring("notary")
    other = tmp_path / "other"
    other.mkdir()
    lay_out(other, {"job": {"seed = 7": "seed = 8"}})
    job, files = read_all(other)
    with (
        raises(PeerError, "connection-rejected"),
        open_party_context(job, files["city"], world.transport, software_versions()) as post,
    ):
        post.dial(Role.COORDINATOR)
    assert notary.connection.stop_signal.failure is None
