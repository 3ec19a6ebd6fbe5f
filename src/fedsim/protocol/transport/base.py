"""The transport interface: ordered streams of frames to one peer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fedsim.protocol.parties import Party


class ConnectionLost(Exception):  # noqa: N818
    """The line is gone. A session dials again; ``lasting`` says that this would be in vain, and why."""

    def __init__(self, reason: str = "the line broke", *, lasting: bool = False) -> None:
        super().__init__(reason)
        self.lasting = lasting


class FrameStream(Protocol):
    """One connection to one peer."""

    def send(self, frame: bytes) -> None:
        """Hand a frame over; raises LineBroken where the line is known to be gone."""

    def receive(self) -> bytes:
        """The next frame, however long it takes; raises LineBroken."""

    def close(self) -> None:
        """Let the line go; both sides see it break."""


# The caller as its certificate proves it (nobody where there is no TLS); runs in a thread of its own until it is done
# with the line.
StreamHandler = Callable[[Party | None, FrameStream], None]


class Listener(Protocol):
    """An open door."""

    @property
    def address(self) -> str:
        """Where it listens, with the port that was found free where port 0 was asked for."""

    def close(self) -> None: ...


class Transport(Protocol):
    """A way to reach peers."""

    def listen(self, address: str, answer: StreamHandler) -> Listener:
        """Answer every line that comes in."""

    def dial(self, address: str, peer: Party) -> FrameStream:
        """A line to this peer and no other; raises LineBroken."""
