"""How long a primary that has finished looks for its coordinator."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedsim.errors import AwayError
from fedsim.runtime import primary
from fedsim.runtime.party_context import ReconnectingPeer


@pytest.mark.parametrize(("trained", "job_waits", "expected"), [(True, 600, 120), (True, 30, 30), (False, 600, 10)])
def test_a_coordinator_that_restarts_is_waited_for_unless_it_may_have_finished(trained, job_waits, expected, caplog):
    connection, waited = SimpleNamespace(wait_seconds=float(job_waits)), []

    def dial():
        waited.append(connection.wait_seconds)
        raise AwayError("nobody answers", code="peer-away")

    primary._notify_coordinator(ReconnectingPeer(dial), SimpleNamespace(connection=connection), trained=trained)
    assert waited == [expected]
    assert bool(caplog.records) is trained
