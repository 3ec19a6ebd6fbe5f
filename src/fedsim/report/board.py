"""A live page about the parties running on this machine, served on 127.0.0.1 under a secret path.

It listens on 127.0.0.1 alone, under an address that nobody can guess, and answers no request that was made under
another name: neither another user of the machine nor a page in the browser may read it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedsim.errors import FileError, SettingError
from fedsim.runs.progress import PROGRESS_FILE, RUNNING

LOCALHOST = "127.0.0.1"
MAX_FOLDER_DEPTH, MAX_RUNS = 4, 12
CONTENT_SECURITY_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
BOARD_FILES = {"": ("text/html", "board.html"), "board.js": ("text/javascript", "board.js")}


class BoardServer(ThreadingHTTPServer):
    """Serves until :meth:`shutdown`; ``address`` is what to open."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int) -> None:
        if not folder.is_dir():
            raise FileError(f"there is no folder {folder}; name a run folder, or one above it")
        self.folder, self.token = folder, secrets.token_urlsafe(16)
        try:
            super().__init__((LOCALHOST, port), partial(_BoardRequestHandler))
        except OSError as error:
            raise SettingError(
                f"port {port} cannot be used ({error.strerror}); choose another with --port, 0 takes any free one"
            ) from error

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{LOCALHOST}:{self.server_port}/{self.token}/"

    def state(self) -> list[dict[str, Any]]:
        """What every party of the latest runs under the folder wrote last: those at work first, else by their place."""
        paths = [
            path
            for depth in range(MAX_FOLDER_DEPTH + 1)
            for path in self.folder.glob("/".join(["*"] * depth + [PROGRESS_FILE]))
        ]
        latest = sorted(paths, key=lambda path: -_modified_at(path))[:MAX_RUNS]
        parties = [found for path in latest if (found := _read_progress(path, self.folder)) is not None]
        return sorted(parties, key=lambda party: (party.get("state") != RUNNING, party["folder"]))


def _modified_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # gone since it was found
        return 0.0


def _read_progress(path: Path, above: Path) -> dict[str, Any] | None:
    """What a party wrote, with its place and the seconds since; none for a file that is no such thing."""
    try:
        # What is no number, a browser cannot read; earlier releases wrote it.
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict):
        return None
    return found | {"folder": str(path.parent.relative_to(above)), "silent": time.time() - _modified_at(path)}


class _BoardRequestHandler(BaseHTTPRequestHandler):
    server: BoardServer

    def do_GET(self) -> None:
        names = {f"{host}:{self.server.server_port}" for host in (LOCALHOST, "localhost")}
        if self.headers.get("Host") not in names:
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"this address is not mine")
            return
        token, _, part = self.path.lstrip("/").partition("/")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"open the address that `fedsim runs --live` printed")
        elif part == "state":
            self._answer(HTTPStatus.OK, "application/json", json.dumps(self.server.state()).encode())
        elif part == "board.css":
            self._answer(HTTPStatus.OK, "text/css", _resource("page.css") + _resource("board.css"))
        elif part in BOARD_FILES:
            kind, name = BOARD_FILES[part]
            self._answer(HTTPStatus.OK, kind, _resource(name))
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such part")

    def log_message(self, format: str, *args: Any) -> None:
        """Visits are nobody's business."""

    def _answer(self, status: HTTPStatus, kind: str, content: bytes, headers: Mapping[str, str] = HEADERS) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _resource(name: str) -> bytes:
    return files("fedsim.report").joinpath(name).read_bytes()
