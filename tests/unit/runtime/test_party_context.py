"""However a party's process ends, its own log has the whole reason, the others hear the kind, and bytes are counted."""

from __future__ import annotations

import json
import logging
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from error_fixtures import raises
from fedsim.errors import FileError, PeerError
from fedsim.protocol.cut_layer import wire_format
from fedsim.protocol.messages import Farewell, Ready, Role
from fedsim.protocol.roles.primary_role import RemoteSecondary
from fedsim.protocol.session import public_reason
from fedsim.protocol.transport import MAX_WIDTH, InProcessTransport
from fedsim.runs.approval import ApprovalError
from fedsim.runs.run_folder import (
    ENCODED_FOLDER,
    AlreadyRunningError,
    open_audit_log,
    read_audit_log,
    read_ledger,
    run_path,
)
from fedsim.runtime import party_context
from fedsim.runtime.party_context import open_party_context, software_versions
from job_fixtures import change, lay_out, read_all
from session_fixtures import PATIENCE


@pytest.fixture(autouse=True)
def _short_notice(monkeypatch):
    """Nobody listens here, so a party that ends need not try long to say why."""
    monkeypatch.setattr(party_context, "FAILURE_NOTICE_SECONDS", 0.5)


@pytest.fixture
def world(tmp_path):
    lay_out(tmp_path, {"job": {"wait_seconds = 60": "wait_seconds = 1"}})
    return read_all(tmp_path)


def at_city(world, fault=None, *, seen=0):
    """A process of the primary that counts some frames and ends, well or with a fault."""
    job, files = world
    with open_party_context(job, files["city"], InProcessTransport(), software_versions()) as post:
        for _ in range(seen):
            post.connection.ledger.count(Farewell(), post.connection.party, post.peer(Role.COORDINATOR), 10)
        if fault:
            raise fault


def last_entry(own):
    return list(read_audit_log(open_audit_log(own).path))[-1]


def test_the_own_log_has_the_whole_reason_and_the_others_only_its_kind(world):
    with pytest.raises(FileError):
        at_city(world, FileError("cannot write flats.npz: no space left"))
    facts = last_entry(world[1]["city"]).facts
    assert facts["details"] == "cannot write flats.npz: no space left"
    assert facts["sent_to_peers"] == public_reason(FileError(""))


def test_of_a_defect_the_log_has_the_place_and_not_the_text(world):
    with pytest.raises(ZeroDivisionError):
        at_city(world, ZeroDivisionError("a record: Ada, 1815"))
    facts = last_entry(world[1]["city"]).facts
    assert facts["details"].startswith("ZeroDivisionError in test_party_context.py, line ")
    assert "Ada" not in json.dumps(facts)


def test_a_job_that_is_not_approved_is_said_to_be_so(tmp_path):
    lay_out(tmp_path, {"job": {"wait_seconds = 60": "wait_seconds = 1"}})
    world = read_all(tmp_path, approved=False)
    with pytest.raises(ApprovalError):
        at_city(world)
    facts = last_entry(world[1]["city"]).facts
    assert facts["sent_to_peers"] == "its owner has not approved this job"
    assert "fedsim approve" in facts["details"]


SEALED = {"[network]": '[protection]\ngradients = "none"\n\n[network]'}


BARE = {"[network]": '[protection]\ngradients = "none"\nembedding = "features"\n\n[network]'}


@pytest.mark.parametrize(
    ("changes", "widths"), [({}, (32, 32)), (SEALED, (128, 128)), (BARE, (1, MAX_WIDTH))], ids=["sent", "rows", "bare"]
)
def test_a_primary_accepts_the_width_of_the_network_of_its_job(tmp_path, changes, widths):
    lay_out(tmp_path, {"job": changes})
    job, files = read_all(tmp_path)
    with open_party_context(job, files["city"], InProcessTransport(), software_versions()) as context:
        assert context.connection.bounds.table("ready")["width"] == widths


def test_a_secondary_that_announces_another_width_ends_its_session(tmp_path):
    lay_out(tmp_path)
    job, files = read_all(tmp_path)
    transport, answered = InProcessTransport(), []
    with open_party_context(job, files["city"], transport, software_versions()) as city:
        acceptor = city.listen(city.secondaries)

        def announce() -> None:
            with open_party_context(job, files["rentals"], transport, software_versions()) as rentals:
                session = rentals.dial(Role.PRIMARY)
                session.send(Ready(16_384, 200), reply_to=session.receive().sequence)
                answered.append(session)

        secondary = threading.Thread(target=announce, daemon=True)
        secondary.start()
        with raises(PeerError, "out-of-bounds"):
            RemoteSecondary(acceptor.session_with(city.secondaries[0]), wire_format("float32"))
        secondary.join(PATIENCE)
        assert answered


def test_the_reason_is_said_before_others_are_waited_for(world, caplog):
    with pytest.raises(FileError), caplog.at_level(logging.INFO):
        at_city(world, FileError("cannot write flats.npz: no space left"))
    assert "no space left" in caplog.messages[0]


def test_all_processes_of_a_party_count_together_however_they_end(world):
    job, files = world
    at_city(world, seen=2)
    with pytest.raises(KeyboardInterrupt):
        at_city(world, KeyboardInterrupt(), seen=3)
    (entry,) = read_ledger(run_path(job, files["city"]))
    assert (entry.kind, entry.messages, entry.bytes) == ("farewell", 5, 50)


def test_a_process_that_found_another_at_work_leaves_its_ledger_alone(world):
    job, files = world
    with (
        open_party_context(job, files["city"], InProcessTransport(), software_versions()),
        pytest.raises(AlreadyRunningError),
    ):
        at_city(world, seen=2)
    assert read_ledger(run_path(job, files["city"])) == []


def test_a_ledger_that_is_none_is_named_and_nothing_is_written_over_it(world, caplog):
    job, files = world
    at_city(world, seen=1)
    path = run_path(job, files["city"]) / "ledger.json"
    path.write_text("{}[")
    at_city(world, seen=1)
    assert path.read_text() == "{}["
    assert "ledger.json" in caplog.text


def test_what_a_killed_process_counted_is_taken_up_by_the_next(world, monkeypatch):
    job, files = world
    monkeypatch.setattr("fedsim.runs.run_folder.LEDGER_INTERVAL_SECONDS", 0.01)
    folder = run_path(job, files["city"])
    with open_party_context(job, files["city"], InProcessTransport(), software_versions()) as post:
        post.connection.ledger.count(Farewell(), post.connection.party, post.peer(Role.COORDINATOR), 10)
        while not (folder / "ledger.open.json").exists():
            post.connection.stop_signal.check()
        left = (folder / "ledger.open.json").read_text()
    (folder / "ledger.json").unlink()
    (folder / "ledger.open.json").write_text(left)  # as a kill leaves it
    at_city(world, seen=2)
    (entry,) = read_ledger(folder)
    assert (entry.messages, entry.bytes) == (3, 30)
    assert not (folder / "ledger.open.json").exists()


class NoDialling(InProcessTransport):
    """A transport whose use is an error of the test."""

    def dial(self, *_: object) -> Any:
        pytest.fail("dialled before the own files were read")


def test_a_missing_key_is_reported_before_anybody_is_dialled(tmp_path: Path) -> None:
    lay_out(tmp_path)
    change(tmp_path / "rentals.toml", '"linkage.key"', '"env:FEDSIM_MISSING"')
    job, files = read_all(tmp_path)
    with pytest.raises(FileError) as missing, open_party_context(job, files["rentals"], NoDialling(), {}):
        pass
    assert missing.value.code == "no-variable"
    (run_path(job, files["rentals"]) / ENCODED_FOLDER).mkdir(parents=True)  # begun with a key that is gone since
    with open_party_context(job, files["rentals"], NoDialling(), {}):
        pass


def test_a_party_goes_on_without_metrics_if_their_port_is_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lay_out(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        text = f'[telemetry]\nmetrics = "127.0.0.1:{other.getsockname()[1]}"\n'
        (tmp_path / "notary.toml").write_text((tmp_path / "notary.toml").read_text() + text)
        job, files = read_all(tmp_path)
        with open_party_context(job, files["notary"], NoDialling(), {}) as context:
            assert context.telemetry is not None
    assert [record.levelname for record in caplog.records if record.levelno >= logging.WARNING] == ["WARNING"]
