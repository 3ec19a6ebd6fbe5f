"""What the others are told when a party fails: the kind of failure, nothing of its data, paths or columns."""

from __future__ import annotations

from contextlib import suppress

from fedsim.errors import (
    AwayError,
    FedSimError,
    FileError,
    FingerprintError,
    InputError,
    PeerError,
    PolicyError,
    SettingError,
)
from fedsim.protocol.messages import Message, Trouble
from fedsim.protocol.session import PeerRestarted, Session
from fedsim.protocol.station import Station

TOLD_WHOLE = (PolicyError, FingerprintError, PeerError)  # written to be told
KINDS: tuple[tuple[type[BaseException], str], ...] = (
    (FileError, "a file or folder of its own cannot be read or written"),
    (InputError, "its own table breaks a rule"),
    (SettingError, "one of its own settings cannot be kept"),
    (KeyboardInterrupt, "its owner stopped it"),
)


def public_reason(fault: BaseException) -> str:
    """The words for the other parties; details stay in the local log.

    >>> public_reason(FileError("cannot write /home/ada/secret: disk full"))
    'a file or folder of its own cannot be read or written; its log has the details'
    """
    if isinstance(fault, TOLD_WHOLE):
        return str(fault)
    words = next((words for kind, words in KINDS if isinstance(fault, kind)), "")
    if isinstance(fault, KeyboardInterrupt):
        return words
    words = words or ("it cannot go on" if isinstance(fault, FedSimError) else "a defect stopped it")
    return f"{words}; its log has the details"


def trouble_of(station: Station, fault: BaseException) -> Trouble:
    """What to tell: our own failure, or that of the party that made us stop."""
    if station.alarm.rung:
        return Trouble(*station.alarm.rung)
    passing = isinstance(fault, AwayError | KeyboardInterrupt)
    return Trouble(str(station.party), public_reason(fault), passing)


def part(session: Session, fault: FedSimError) -> None:
    """End one conversation that cannot go on, and say why; the sender stays for all others."""
    if not session.is_over:
        tell([session], Trouble(str(session.station.party), public_reason(fault), passing=False))


def tell(sessions: list[Session], last_word: Message) -> None:
    """Tell all who still listen, and end their conversations."""
    for session in sessions:
        with suppress(PeerError, PeerRestarted):  # what ended a conversation, perhaps just now
            session.post(last_word)
    for session in sessions:
        session.close()
