"""The network that the primary trains by itself, for the hours in which a partner is away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsim.pipeline.party_table import PartyData
from fedsim.protocol.transport import InProcessTransport
from fedsim.runtime.party_context import PartyContext, open_party_context, software_versions
from fedsim.runtime.primary import SOLO_MODEL, prepare_primary, train_solo
from fedsim.runtime.run_store import RunStore
from job_fixtures import lay_out, read_all


@pytest.fixture
def post(tmp_path: Path) -> Iterator[PartyContext]:
    lay_out(tmp_path)
    job, files = read_all(tmp_path)
    with open_party_context(job, files["city"], InProcessTransport(), software_versions()) as there:
        yield there


def trained_alone(post: PartyContext) -> bool:
    keep = RunStore(post.folder, post.job)
    train_solo(post, keep, prepare_primary(PartyData.read(post.job, post.party_file, approved=True), post))
    return keep.has_weights(SOLO_MODEL)


def test_the_owner_who_wishes_to_stop_is_heard(post):
    post.connection.stop_signal.stop()
    with pytest.raises(KeyboardInterrupt):
        trained_alone(post)
    assert not RunStore(post.folder, post.job).has_weights(SOLO_MODEL)


def test_a_partner_that_fails_by_now_does_not_stop_it(post):
    post.connection.stop_signal.report_failure("secondary 'rentals'", "its disk is full")
    assert trained_alone(post)
