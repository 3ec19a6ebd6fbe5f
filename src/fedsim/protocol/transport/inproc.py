"""All parties in one process: the same frames, through queues."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from fedsim.errors import SettingError
from fedsim.protocol.parties import Party
from fedsim.protocol.transport.base import Answer, LineBroken


class QueueLine:
    """One end of a line; an empty frame says that it broke."""

    def __init__(self, incoming: SimpleQueue[bytes], outgoing: SimpleQueue[bytes]) -> None:
        self._incoming, self._outgoing, self._closed = incoming, outgoing, False

    def send(self, frame: bytes) -> None:
        if self._closed:
            raise LineBroken
        self._outgoing.put(frame)

    def receive(self) -> bytes:
        frame = b"" if self._closed else self._incoming.get()
        if not frame:
            self.close()
            raise LineBroken
        return frame

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._outgoing.put(b"")
            self._incoming.put(b"")


def line_pair() -> tuple[QueueLine, QueueLine]:
    """Both ends of a line.

    >>> here, there = line_pair()
    >>> here.send(b"word")
    >>> there.receive()
    b'word'
    """
    forth: SimpleQueue[bytes] = SimpleQueue()
    back: SimpleQueue[bytes] = SimpleQueue()
    return QueueLine(back, forth), QueueLine(forth, back)


class InProcess:
    """Addresses are any words; callers need no certificate, for they are ourselves."""

    def __init__(self) -> None:
        self._doors: dict[str, Answer] = {}

    def listen(self, address: str, answer: Answer) -> _Door:
        if address in self._doors:
            raise SettingError(f"somebody listens at '{address}' already; give every party an address of its own")
        self._doors[address] = answer
        return _Door(address, self._doors)

    def dial(self, address: str, peer: Party) -> QueueLine:
        answer = self._doors.get(address)
        if answer is None:
            raise LineBroken(f"nobody listens at '{address}'")
        here, there = line_pair()
        threading.Thread(target=answer, args=(None, there), daemon=True).start()
        return here


class _Door:
    def __init__(self, address: str, doors: dict[str, Answer]) -> None:
        self.address, self._doors = address, doors

    def close(self) -> None:
        self._doors.pop(self.address, None)
