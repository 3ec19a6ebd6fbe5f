"""A peer that may start anew at any time: whoever asks it something asks again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from fedsim.protocol.session import PeerRestarted, Session

log = logging.getLogger("fedsim.parties")

Answer = TypeVar("Answer")


class Reach:
    """Keeps a conversation and opens another when the peer has lost it."""

    def __init__(self, open_session: Callable[[], Session]) -> None:
        self._open = open_session
        self._session: Session | None = None

    @property
    def connected(self) -> bool:
        """Whether the peer is there just now."""
        return self._session is not None and not self._session.is_over and self._session.connected

    def session(self) -> Session:
        """The conversation of now, opened where there is none."""
        if self._session is None or self._session.is_over:
            self._session = self._open()
        return self._session

    def ask(self, question: Callable[[Session], Answer]) -> Answer:
        """Put a question until it is answered; it must do no harm twice."""
        while True:
            try:
                return question(self.session())
            except PeerRestarted as restarted:
                log.info("%s; asking it again", restarted)
