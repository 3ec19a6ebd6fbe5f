"""A secondary limits what a primary can make it write, and how long it waits for one that leaves."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from error_fixtures import raises
from fedsim.errors import PeerError
from fedsim.protocol import session as session_module
from fedsim.protocol.messages import Begin, Done, Farewell, Finish
from fedsim.protocol.transport import InProcessTransport
from fedsim.runs.run_folder import read_audit_log, run_path
from fedsim.runtime.party_context import open_party_context, software_versions
from fedsim.runtime.run_local import run_local
from fedsim.runtime.secondary import ENDED_FILE, run_secondary
from job_fixtures import lay_out, read_all
from session_fixtures import PATIENCE

LIMIT = 3


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Send requests as the primary of a job that is trained, but not confirmed; return the secondary's log of them."""
    lay_out(tmp_path)
    job, files = read_all(tmp_path)
    run_local(job, list(files.values()))
    own = files["rentals"]
    (run_path(job, own) / ENDED_FILE).unlink()
    monkeypatch.setattr(session_module, "MAX_LOGGED_EVENTS", LIMIT)
    transport, before = (
        InProcessTransport(),
        Counter(entry.what for entry in read_audit_log(own.folder / "audit.jsonl")),
    )

    def serve() -> None:
        with open_party_context(job, own, transport, software_versions()) as context:
            run_secondary(context)

    def send(*requests):
        secondary = threading.Thread(target=serve, daemon=True)
        with open_party_context(job, files["city"], transport, software_versions()) as context:
            acceptor = context.listen(context.secondaries)
            secondary.start()
            session = acceptor.session_with(context.secondaries[0])
            for request in requests:
                assert session.call(request, Done).fault == ""
            session.send(Farewell())
            secondary.join(PATIENCE)
        assert not secondary.is_alive()
        return Counter(entry.what for entry in read_audit_log(own.folder / "audit.jsonl")) - before

    return send


def test_a_training_begun_and_finished_again_and_again_does_not_fill_the_log(ask):
    events = ask(*[Begin(1), Finish()] * (2 * LIMIT))
    assert events["training"] == events["saved"] == LIMIT


def test_comparison_runs_begun_again_and_again_do_not_fill_the_log(ask):
    events = ask(*[Begin(1, study=True, seed=seed) for seed in range(2 * LIMIT)])
    assert events["study"] == events["budget"] == LIMIT


def test_a_request_that_is_refused_after_training_does_not_pass_for_the_exit_of_the_primary(tmp_path):
    lay_out(tmp_path)
    job, files = read_all(tmp_path)
    run_local(job, list(files.values()))
    transport, refused = InProcessTransport(), threading.Event()

    def serve() -> None:
        with (
            raises(PeerError, "bad-steps"),
            open_party_context(job, files["rentals"], transport, software_versions()) as context,
        ):
            run_secondary(context)
        refused.set()

    secondary = threading.Thread(target=serve, daemon=True)
    with open_party_context(job, files["city"], transport, software_versions()) as context:
        acceptor = context.listen(context.secondaries)
        secondary.start()
        session = acceptor.session_with(context.secondaries[0])
        with raises(PeerError, "peer-stopped"):
            session.call(Begin(10**9), Done)
    assert refused.wait(PATIENCE)


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
        acceptor = post.listen(post.secondaries)
        secondary.start()
        for party in post.secondaries:
            acceptor.session_with(party)
    assert ended.wait(PATIENCE)
