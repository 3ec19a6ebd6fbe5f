"""The primary: how long it waits for a coordinator at the end, and its network for the time without partners."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedsim.errors import AwayError
from fedsim.pipeline.party_table import PartyData
from fedsim.protocol.transport import InProcessTransport
from fedsim.runtime.linking import CoordinatorLinking
from fedsim.runtime.party_context import PartyContext, ReconnectingPeer, open_party_context, software_versions
from fedsim.runtime.primary import SOLO_MODEL, prepare_primary, train_solo
from fedsim.runtime.run_store import RunStore
from job_fixtures import lay_out, read_all


@pytest.mark.parametrize(("trained", "job_waits", "expected"), [(True, 600, 120), (True, 30, 30), (False, 600, 10)])
def test_a_coordinator_that_restarts_is_waited_for_unless_it_may_have_finished(trained, job_waits, expected, caplog):
    connection, waited = SimpleNamespace(wait_seconds=float(job_waits)), []

    def dial():
        waited.append(connection.wait_seconds)
        raise AwayError("nobody answers", code="peer-away")

    files = SimpleNamespace(folder=None)
    context = SimpleNamespace(connection=connection, job=SimpleNamespace(secondaries={}), folder=None, party_file=files)
    CoordinatorLinking(context, {}, ReconnectingPeer(dial)).end(trained=trained)
    assert waited == [expected]
    assert bool(caplog.records) is trained


@pytest.fixture
def context(tmp_path: Path) -> Iterator[PartyContext]:
    lay_out(tmp_path)
    job, files = read_all(tmp_path)
    with open_party_context(job, files["city"], InProcessTransport(), software_versions()) as opened:
        yield opened


def train_and_find_solo_model(context: PartyContext) -> bool:
    keep = RunStore(context.folder, context.job)
    train_solo(context, keep, prepare_primary(PartyData.read(context.job, context.party_file, approved=True), context))
    return keep.has_weights(SOLO_MODEL)


def test_the_owner_who_wishes_to_stop_is_heard(context):
    context.connection.stop_signal.stop()
    with pytest.raises(KeyboardInterrupt):
        train_and_find_solo_model(context)
    assert not RunStore(context.folder, context.job).has_weights(SOLO_MODEL)


def test_a_partner_that_fails_by_now_does_not_stop_it(context):
    context.connection.stop_signal.report_failure("secondary 'rentals'", "its disk is full")
    assert train_and_find_solo_model(context)
