"""What a transport offers: lines to one peer each, on which whole byte strings travel in order until the line breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fedsim.protocol.parties import Party


class LineBroken(Exception):  # noqa: N818
    """The line is gone; another may be dialled. Never reaches a user: sessions mend it or say what it means."""


class Line(Protocol):
    """One connection to one peer."""

    def send(self, frame: bytes) -> None:
        """Hand a frame over; raises LineBroken where the line is known to be gone."""

    def receive(self, seconds: float) -> bytes | None:
        """The next frame, or nothing if none came in time; raises LineBroken."""

    def close(self) -> None:
        """Let the line go; the other side sees it break."""


Answer = Callable[[Party | None, Line], None]  # the caller as its certificate proves it; nobody without TLS


class Listener(Protocol):
    """An open door."""

    @property
    def address(self) -> str:
        """Where it listens, with the port that was found free where port 0 was asked for."""

    def close(self) -> None: ...


class Transport(Protocol):
    """A way to reach peers."""

    def listen(self, address: str, answer: Answer) -> Listener:
        """Answer every line that comes in, each in a thread of its own."""

    def dial(self, address: str, peer: Party) -> Line:
        """A line to this peer and no other; raises LineBroken with the reason where there is none."""
