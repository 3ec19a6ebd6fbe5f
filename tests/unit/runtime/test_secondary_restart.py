"""A secondary that starts anew after all is saved does not wait long for a primary that leaves."""

from __future__ import annotations

import threading

from fedsim.protocol.transport import InProcessTransport
from fedsim.runtime.party_context import open_party_context, software_versions
from fedsim.runtime.run_local import run_local
from fedsim.runtime.secondary import run_secondary
from job_fixtures import lay_out, read_all
from session_fixtures import PATIENCE


def test_a_primary_that_leaves_in_mid_conversation_is_not_waited_for_as_in_training(tmp_path, monkeypatch):
    monkeypatch.setattr("fedsim.runtime.secondary.GRACE_SECONDS", 0.5)
    lay_out(tmp_path, {"job": {"wait_seconds = 60": "wait_seconds = 604800"}})  # as in training
    job, files = read_all(tmp_path)
    run_local(job, list(files.values()))
    transport, ended = InProcessTransport(), threading.Event()

    def again():
        with open_party_context(job, files["rentals"], transport, software_versions()) as post:
            run_secondary(post)
        ended.set()

    secondary = threading.Thread(target=again, daemon=True)
    with open_party_context(job, files["city"], transport, software_versions()) as post:
        reception = post.listen(post.secondaries)
        secondary.start()
        for party in post.secondaries:
            reception.session_with(party)
    assert ended.wait(PATIENCE)
