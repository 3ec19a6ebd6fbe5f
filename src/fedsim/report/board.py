"""A live page about the parties running on this machine, served on 127.0.0.1 under a secret path.

It rejects requests under another host name, so that neither another user of the machine nor a page in the browser can
read it.
"""

import json
import secrets
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedsim.errors import FileError, SettingError
from fedsim.report.run_data import find_files
from fedsim.runs.run_folder import PROGRESS_FILE, RUNNING

LOCALHOST = "127.0.0.1"
MAX_RUNS = 12
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
BOARD_FILES = {
    "": ("text/html", ("board.html",)),
    "board.js": ("text/javascript", ("board.js",)),
    "board.css": ("text/css", ("page.css", "board.css")),
}


class BoardServer(ThreadingHTTPServer):
    """Serve the page of the runs under a folder until :meth:`shutdown`; open ``address`` to see it."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int) -> None:
        if not folder.is_dir():
            raise FileError(f"{folder} is not a folder; pass a run folder, or one above it", code="no-folder")
        self.folder, self.token = folder, secrets.token_urlsafe(16)
        try:
            super().__init__((LOCALHOST, port), _BoardRequestHandler)
        except OSError as error:
            message = f"port {port} cannot be used ({error.strerror}); choose another with --port (0 for any free one)"
            raise SettingError(message, code="port-unavailable", port=port) from error

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{LOCALHOST}:{self.server_port}/{self.token}/"

    def state(self) -> list[dict[str, Any]]:
        """Return the progress of every party of the latest runs, those that are running first."""
        latest = sorted(find_files(self.folder, PROGRESS_FILE), key=lambda path: -_modified_at(path))[:MAX_RUNS]
        parties = []
        for path in latest:
            try:
                # Earlier versions wrote NaN, which a browser cannot parse.
                party = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
            except (OSError, ValueError):
                continue
            if isinstance(party, dict):
                folder, silent = str(path.parent.relative_to(self.folder)), time.time() - _modified_at(path)
                parties.append(party | {"folder": folder, "silent": silent})
        return sorted(parties, key=lambda party: (party.get("state") != RUNNING, party["folder"]))


def _modified_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # deleted in the meantime
        return 0.0


class _BoardRequestHandler(BaseHTTPRequestHandler):
    server: BoardServer

    def do_GET(self) -> None:
        hosts = {f"{host}:{self.server.server_port}" for host in (LOCALHOST, "localhost")}
        if self.headers.get("Host") not in hosts:
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"wrong host name")
            return
        token, _, part = self.path.lstrip("/").partition("/")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"open the address that `fedsim runs --live` printed")
        elif part == "state":
            self._answer(HTTPStatus.OK, "application/json", json.dumps(self.server.state()).encode())
        elif part in BOARD_FILES:
            kind, names = BOARD_FILES[part]
            content = b"".join(files("fedsim.report").joinpath(name).read_bytes() for name in names)
            self._answer(HTTPStatus.OK, kind, content)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"not found")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the path contains the secret."""

    def _answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
