"""What all conversations of one process share: who speaks, what was counted, and whether anybody gave up."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedsim.errors import AwayError, PeerError
from fedsim.protocol.ledger import Ledger
from fedsim.protocol.parties import Party

POLL = 0.2
Note = Callable[[str, Mapping[str, Any]], object]


def _unheard(what: str, facts: Mapping[str, Any]) -> None:
    """Notes go nowhere unless a party keeps a log."""


class Alarm:
    """Rung once, by whoever fails first; everybody who waits hears it, and so with the owner's wish to stop.

    An exception out of a signal, in the midst of gRPC, would leave locks behind that nobody opens again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rung: tuple[str, str, bool] | None = None
        self._stopped = False

    def ring(self, origin: str, reason: str, *, passing: bool = False) -> None:
        """Tell all who wait in this process; the first reason stays. One that passes is worth another attempt."""
        with self._lock:
            self._rung = self._rung or (origin, reason, passing)

    def stop(self) -> None:
        """The owner wishes to stop; all who wait leave with KeyboardInterrupt."""
        self._stopped = True

    @property
    def rung(self) -> tuple[str, str, bool] | None:
        """Who failed, why, and whether that passes."""
        return self._rung

    def heed_owner(self) -> None:
        """Leave with KeyboardInterrupt where the owner wishes to stop, whatever the others do."""
        if self._stopped:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Raise what was rung."""
        self.heed_owner()
        if self._rung:
            origin, reason, passing = self._rung
            kind = AwayError if passing else PeerError
            raise kind(f"{origin} stopped: {reason}")

    def wait(self, seconds: float) -> None:
        """Do nothing for so long, unless something is rung."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.check()
            time.sleep(min(POLL, seconds))


@dataclass(eq=False)
class Station:
    """A party's place in a job. ``instance`` is drawn anew by every process, so a restart can be told from a cut.

    ``wait_seconds`` is how long to wait for a peer that is away; it may change as the job goes on. ``staying``:
    training is over and predictions are answered, so a peer that gives up ends its own conversation and nothing else.
    ``waits`` says in words for whom one waits, and since when, after a moment in which anybody may be late.
    """

    party: Party
    job: Mapping[str, Any]
    versions: Mapping[str, str]
    wait_seconds: float = 600.0
    staying: bool = field(default=False, kw_only=True)
    note: Note = _unheard
    instance: str = field(default_factory=lambda: secrets.token_hex(16))
    ledger: Ledger = field(default_factory=Ledger)
    alarm: Alarm = field(default_factory=Alarm)
    waits: dict[Party, str] = field(default_factory=dict)

    def wait_for(self, peer: Party, seconds: float, how: str = "") -> str:
        """Note that one has waited so long for a peer, until it is forgotten; returns the words."""
        began = time.strftime("%H:%M:%S", time.localtime(time.time() - seconds))
        self.waits[peer] = f"{peer} since {began}{how}"
        return self.waits[peer]

    @property
    def job_text(self) -> str:
        """The job as it is compared."""
        return json.dumps(self.job, sort_keys=True)

    @property
    def version_text(self) -> str:
        """The versions as they are compared."""
        return json.dumps(self.versions, sort_keys=True)
