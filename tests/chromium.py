"""Chromium without a window, spoken to in its DevTools protocol over a pipe; it ends when the pipe does."""

from __future__ import annotations

import atexit
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from fcntl import F_DUPFD, fcntl
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = (
    "--headless",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-component-update",
    "--disable-background-networking",
    "--no-first-run",
    "--force-device-scale-factor=1",
    "--lang=en",
)
# No name is looked up, so that a page that asks for something outside cannot get it.
NOWHERE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
READS, WRITES, FREE = 3, 4, 20  # where Chromium listens and answers; descriptors that are surely free
PATIENCE = 300.0

Event = dict[str, Any]


def found() -> str | None:
    """The program of this machine."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class GoneError(RuntimeError):
    """The browser ended by itself."""


class Chromium:
    """A running browser."""

    def __init__(self, program: str) -> None:
        self._profile = Path(mkdtemp(prefix="fedsim-chromium-"))
        asked, self._ask = os.pipe()
        self._answers, answered = os.pipe()
        ends = (fcntl(asked, F_DUPFD, FREE), fcntl(answered, F_DUPFD, FREE))
        self._process = subprocess.Popen(
            [program, *OPTIONS, NOWHERE, *(["--no-sandbox"] * (os.geteuid() == 0)), f"--user-data-dir={self._profile}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(READS, WRITES, *ends),
            preexec_fn=partial(_take, *ends),  # noqa: PLW1509 - two system calls, no lock
        )
        for end in (asked, answered, *ends):
            os.close(end)
        self._rest, self._count, self._seen = b"", 0, list[Event]()

    def call(self, method: str, session: str | None = None, **parameters: object) -> Event:
        """What the browser answers; events that come first are kept for :meth:`events`."""
        self._count += 1
        number, to = self._count, {"sessionId": session} if session else {}
        order = json.dumps({"id": number, "method": method, "params": parameters} | to)
        try:
            os.write(self._ask, order.encode() + b"\0")
        except BrokenPipeError as error:
            raise self._gone(method) from error
        answer = self._until(lambda message: message.get("id") == number, method)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        result: Event = answer["result"]
        return result

    def wait_for(self, method: str, session: str) -> None:
        """Until such an event has come."""
        if not any(event["method"] == method for event in self.events(session)):
            self._until(lambda message: message.get("method") == method and message["sessionId"] == session, method)

    def events(self, session: str) -> list[Event]:
        """What happened in a tab so far."""
        return [event for event in self._seen if event.get("sessionId") == session]

    def forget(self, session: str) -> None:
        """Drop the events of a tab that was closed."""
        self._seen = [event for event in self._seen if event.get("sessionId") != session]

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it and remove what it wrote."""
        os.close(self._ask)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _until(self, wanted: Callable[[Event], bool], what: str) -> Event:
        deadline = time.monotonic() + PATIENCE
        while True:
            message = self._message(deadline, what)
            if "method" in message:
                self._seen.append(message)
            if wanted(message):
                return message

    def _message(self, deadline: float, what: str) -> Event:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise RuntimeError(f"Chromium was silent while {what} was awaited")
            more = os.read(self._answers, 1 << 20)
            if not more:
                raise self._gone(what)
            self._rest += more
        text, self._rest = self._rest.split(b"\0", 1)
        message: Event = json.loads(text)
        return message

    def _gone(self, what: str) -> GoneError:
        """Its pipe closes a moment before it has ended."""
        self.kill()
        return GoneError(f"Chromium ended while {what} was awaited")


def _take(asked: int, answered: int) -> None:
    os.dup2(asked, READS)
    os.dup2(answered, WRITES)


def running() -> Chromium:
    """One browser for all pages of this process, and another where that one died."""
    browser = _started()
    if not browser.alive:
        _started.cache_clear()
        browser = _started()
    return browser


@cache
def _started() -> Chromium:
    program = found()
    if program is None:
        raise RuntimeError(f"none of {', '.join(NAMES)} is installed; Debian: apt-get install chromium")
    browser = Chromium(program)
    atexit.register(browser.close)
    return browser
