"""What the others are told of a failure is its kind: no path, no value, no column."""

from __future__ import annotations

import pytest

from error_fixtures import raises
from fedsim import errors
from fedsim.errors import (
    DeviceError,
    FedSimError,
    FileError,
    InputError,
    PeerError,
    PolicyError,
    SettingError,
    WireError,
)
from fedsim.protocol.messages import Trouble
from fedsim.protocol.session import PUBLIC_ERRORS, PeerRestarted, close_sessions, failure_notice, public_reason
from fedsim.runs.approval import ApprovalError
from fedsim.splitnn.party_model import DamagedCheckpoint
from session_fixtures import CITY, NOTARY, RENTALS, connect, connection_of, joined, session_of, sessions_of, until

OURS = "/home/ada/secret: record 17, column 'income' is 93000"


def kinds_below(kind):
    return {kind, *(below for each in kind.__subclasses__() for below in kinds_below(each))}


KINDS = sorted(kinds_below(FedSimError), key=lambda kind: kind.__name__)
KEPT = [kind for kind in KINDS if not issubclass(kind, PUBLIC_ERRORS)]
DEFECTS = [RuntimeError, KeyError, MemoryError, OSError, ZeroDivisionError, SystemExit, KeyboardInterrupt]


def instance_of(kind):
    """An error with our secrets in its text, whatever else its constructor requires."""
    error = kind.__new__(kind)
    Exception.__init__(error, OURS) if issubclass(kind, Exception) else BaseException.__init__(error, OURS)
    return error


@pytest.mark.parametrize("kind", [*KEPT, *DEFECTS, PeerRestarted])
def test_nothing_of_a_failure_but_its_kind_is_told(kind):
    fault = instance_of(kind)
    reason = public_reason(fault)
    assert reason
    assert not any(word in reason for word in ("/", "ada", "secret", "income", "'", "17", "93000"))


def test_only_what_was_written_for_others_is_told_whole():
    assert set(PUBLIC_ERRORS) == {PolicyError, errors.FingerprintError, PeerError}
    for kind in PUBLIC_ERRORS:
        assert public_reason(kind("a rule of ours")) == "a rule of ours"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (FileError(OURS), "one of its files"),
        (DamagedCheckpoint(OURS), "one of its files"),
        (InputError(OURS), "its table"),
        (SettingError(OURS), "one of its settings"),
        (DeviceError(OURS), "cannot continue"),
        (WireError(OURS), "cannot continue"),
        (ApprovalError(OURS), "cannot continue"),
        (KeyError(OURS), "internal error"),
        (KeyboardInterrupt(), "its owner stopped it"),
    ],
)
def test_every_kind_of_failure_has_its_words(fault, words):
    assert words in public_reason(fault)


def test_our_own_failure_is_told_under_our_name():
    trouble = failure_notice(connection_of(CITY), FileError(OURS))
    assert (trouble.origin, trouble.reason) == ("primary 'city'", public_reason(FileError(OURS)))


def test_who_stops_because_of_another_tells_of_that_one():
    connection = connection_of(NOTARY)
    connection.stop_signal.report_failure("secondary 'rentals'", "its owner stopped it")
    trouble = failure_notice(connection, PeerError("secondary 'rentals' stopped: its owner stopped it"))
    assert (trouble.origin, trouble.reason) == ("secondary 'rentals'", "its owner stopped it")


def test_everybody_who_still_listens_is_told():
    ended = session_of(CITY, RENTALS)
    ended.end(PeerRestarted(RENTALS))
    pairs = [sessions_of(CITY, RENTALS), sessions_of(CITY, NOTARY)]
    readers = [reader for here, there in pairs for reader in connect(here, there)]
    close_sessions(
        [ended, *(here for here, _ in pairs)], Trouble("primary 'city'", "its own table breaks a rule", False)
    )
    for _, there in pairs:
        until(lambda there=there: there.connection.stop_signal.failure)
        with raises(PeerError, "peer-stopped"):
            there.receive()
    joined(*readers)
