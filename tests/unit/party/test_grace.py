"""A secondary that starts anew after all is saved does not wait long for a primary that leaves."""

from __future__ import annotations

import threading

from fedsim.party.post import at_post
from fedsim.party.secondary import run_secondary
from fedsim.party.together import run_together
from fedsim.party.versions import versions_here
from fedsim.protocol.transport.inproc import InProcess
from party_jobs import lay_out, read_all


def test_a_primary_that_leaves_in_mid_conversation_is_not_waited_for_as_in_training(tmp_path, monkeypatch):
    monkeypatch.setattr("fedsim.party.secondary.GRACE_SECONDS", 0.5)
    lay_out(tmp_path)
    job, files = read_all(tmp_path)
    run_together(job, list(files.values()))
    transport, ended = InProcess(), threading.Event()

    def again():
        with at_post(job, files["rentals"], transport, versions_here()) as post:
            run_secondary(post)
        ended.set()

    secondary = threading.Thread(target=again, daemon=True)
    with at_post(job, files["city"], transport, versions_here()) as post:
        reception = post.receive(post.secondaries)
        secondary.start()
        for party in post.secondaries:
            reception.session_with(party)
    assert ended.wait(20)
