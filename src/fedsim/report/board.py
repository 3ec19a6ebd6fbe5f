"""A live page about the parties running on this machine, served on 127.0.0.1 under a secret path.

It rejects requests under another host name, so that neither another user of the machine nor a page in the browser can
read it.
"""

import json
import secrets
import time
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fedsim.errors import FileError, SettingError
from fedsim.report.run_data import REPORT_FILE, find_files
from fedsim.runs.record import RECORD_FILE, read_run_record
from fedsim.runs.run_folder import PROGRESS_FILE, RUNNING

LOCALHOST = "127.0.0.1"
MAX_RUNS = 12
BOARD_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
REPORTS = "report?run="  # followed by the folder of a run
# A report states its own, stricter policy: the hash of its script.
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
BOARD_FILES = {
    "": ("text/html", ("board.html",)),
    "board.js": ("text/javascript", ("board.js",)),
    "tips.js": ("text/javascript", ("tips.js",)),
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
                result = _read_result(path.parent, _modified_at(path.parent / RECORD_FILE))
                has_report = result is not None and (path.parent / REPORT_FILE).is_file()
                parties.append(party | {"folder": folder, "silent": silent, "result": result, "report": has_report})
        return sorted(parties, key=lambda party: (party.get("state") != RUNNING, party["folder"]))

    def report(self, folder: str) -> bytes | None:
        """Return the report of a run that the page shows; None for every other folder."""
        if not any(party["folder"] == folder and party["report"] for party in self.state()):
            return None
        try:
            return (self.folder / folder / REPORT_FILE).read_bytes()
        except OSError:  # deleted in the meantime
            return None


@lru_cache(maxsize=MAX_RUNS)
def _read_result(folder: Path, modified: float) -> dict[str, Any] | None:
    """Return the metrics of a finished run; ``modified`` makes a record that was written again a new one."""
    if not modified:
        return None
    try:
        record = read_run_record(folder)
    except FileError:
        return None
    part, metrics = record.judged
    return {"part": part, "metrics": metrics}


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
        elif part.startswith(REPORTS) and (page := self.server.report(unquote(part.removeprefix(REPORTS)))):
            self._answer(HTTPStatus.OK, "text/html", page, REPORT_POLICY)
        elif part in BOARD_FILES:
            kind, names = BOARD_FILES[part]
            content = b"".join(files("fedsim.report").joinpath(name).read_bytes() for name in names)
            self._answer(HTTPStatus.OK, kind, content)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"not found")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the path contains the secret."""

    def _answer(self, status: HTTPStatus, kind: str, content: bytes, policy: str = BOARD_POLICY) -> None:
        self.send_response(status)
        self.send_header("Content-Security-Policy", policy)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
