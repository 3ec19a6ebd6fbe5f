"""The board shows what the run folders say, on this machine alone, and nothing of it runs."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from browser import browser_page, needs_browser
from fedsim.cli import main
from fedsim.errors import FileError, SettingError
from fedsim.report.board import Board
from small_runs import HOSTILE, progress_facts

SAYS = "document.body.innerText.includes('{} at work')"
SEEN = f"""new Promise((done) => {{{{
  const look = () => {SAYS} ? done() : setTimeout(look, 5);
  look();
}}}})"""


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    """Serves a folder with a primary at work."""
    put(tmp_path / "city-run" / "flats-a")
    with Board(tmp_path, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(5)


def put(place: Path, **changes: Any) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / "progress.json").write_text(json.dumps(progress_facts(**changes)))


def asked(board: Board, path: str, host: str = "") -> tuple[int, bytes]:
    line = HTTPConnection("127.0.0.1", board.server_port, timeout=5)
    line.request("GET", path, headers={"Host": host or f"127.0.0.1:{board.server_port}"})
    answer = line.getresponse()
    return answer.status, answer.read()


def test_the_state_is_what_the_parties_wrote_last(board: Board) -> None:
    put(board.folder / "rentals-run" / "flats-a", role="secondary", party="rentals", training={})
    (board.folder / "broken").mkdir()
    (board.folder / "broken" / "progress.json").write_text("{")
    status, content = asked(board, f"/{board.token}/state")
    found = {party["folder"]: party["party"] for party in json.loads(content)}
    assert status == 200
    assert found == {"city-run/flats-a": "city", "rentals-run/flats-a": "rentals"}


def test_only_who_knows_the_address_and_calls_it_by_its_name_is_answered(board: Board) -> None:
    assert asked(board, "/")[0] == 404
    assert asked(board, "/guess/state")[0] == 404
    assert asked(board, f"/{board.token}/../../etc/passwd")[0] == 404
    assert asked(board, f"/{board.token}/state", host="evil.example")[0] == 403
    assert asked(board, f"/{board.token}/", host=f"localhost:{board.server_port}")[0] == 200


def test_a_port_in_use_and_a_missing_folder_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SettingError, match="choose another"):
        Board(tmp_path, taken.getsockname()[1])
    with pytest.raises(FileError, match="no folder"):
        Board(tmp_path / "nowhere", 0)
    with pytest.raises(SystemExit) as end:
        main(["board", str(tmp_path / "nowhere")])
    assert end.value.code == 2
    assert "no folder" in capsys.readouterr().err


@needs_browser
def test_a_browser_shows_progress_curves_bytes_and_errors(board: Board) -> None:
    put(board.folder / "rentals-run", role="secondary", party=HOSTILE, state="failed", error=HOSTILE, training={})
    for width in (400, 1200):
        page = browser_page(board.address, width, ready='document.querySelectorAll(".party").length === 2')
        assert (page.errors, page.requests, page.overflows) == ([], [], False), page.screenshot
        assert "epoch 4 of 8 · step 15 of 40 · about 16.7 s left" in page.text
        assert "validation rmse 16.7 after epoch 3" in page.text
        assert "train: activations, rentals → city" in page.text
        assert "2.0 MB over the border" in page.text
        assert page.text.count('<script>console.error("ran")</script>') == 2


@needs_browser
def test_the_open_page_follows_a_party_to_its_end(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    place, state = board.folder / "city-run" / "flats-a", board.state

    def told_once() -> list[dict[str, Any]]:
        found = state()
        put(place, state="done")
        return found

    monkeypatch.setattr(board, "state", told_once)
    page = browser_page(board.address, 400, act=SEEN.format("1 of 1"), ready=SAYS.format("0 of 1"))
    assert page.errors == []
    assert "done" in page.text
