"""The board shows what the run folders say, on this machine alone, and nothing of it runs."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from fedsim.report.board import BoardServer

from browser import browser_page, needs_browser
from fedsim.cli import main
from fedsim.errors import FileError, SettingError
from fedsim.report.run_report import write_report
from run_fixtures import HOSTILE, progress_facts, record_of, write_run

SAYS = "document.body.innerText.includes('{} running')"
SEEN = f"""new Promise((done) => {{{{
  const look = () => {SAYS} ? done() : setTimeout(look, 5);
  look();
}}}})"""


@pytest.fixture
def board(tmp_path: Path) -> Iterator[BoardServer]:
    """Serve a folder with a running primary."""
    put(tmp_path / "city-run" / "flats-a")
    with BoardServer(tmp_path, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(5)


def put(place: Path, **changes: Any) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / "progress.json").write_text(json.dumps(progress_facts(**changes)))


def asked(board: BoardServer, path: str, host: str = "") -> tuple[int, bytes]:
    line = HTTPConnection("127.0.0.1", board.server_port, timeout=300)
    line.request("GET", path, headers={"Host": host or f"127.0.0.1:{board.server_port}"})
    answer = line.getresponse()
    return answer.status, answer.read()


def test_the_state_is_what_the_parties_wrote_last(board: BoardServer) -> None:
    put(board.folder / "rentals-run" / "flats-a", role="secondary", party="rentals", training={})
    (board.folder / "broken").mkdir()
    (board.folder / "broken" / "progress.json").write_text("{")
    status, content = asked(board, f"/{board.token}/state")
    found = {party["folder"]: party["party"] for party in json.loads(content)}
    assert status == 200
    assert found == {"city-run/flats-a": "city", "rentals-run/flats-a": "rentals"}


def test_only_who_knows_the_address_and_calls_it_by_its_name_is_answered(board: BoardServer) -> None:
    assert asked(board, "/")[0] == 404
    assert asked(board, "/guess/state")[0] == 404
    assert asked(board, f"/{board.token}/../../etc/passwd")[0] == 404
    assert asked(board, f"/{board.token}/state", host="evil.example")[0] == 403
    assert asked(board, f"/{board.token}/", host=f"localhost:{board.server_port}")[0] == 200


def test_a_port_in_use_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SettingError) as in_use:
        BoardServer(tmp_path, taken.getsockname()[1])
    with pytest.raises(FileError) as missing:
        BoardServer(tmp_path / "nowhere", 0)
    assert (in_use.value.code, missing.value.code) == ("port-unavailable", "no-folder")
    with pytest.raises(SystemExit) as end:
        main(["runs", "--live", str(tmp_path / "nowhere")])
    assert end.value.code == 2


@needs_browser
def test_a_browser_shows_progress_curves_bytes_and_errors(board: BoardServer) -> None:
    put(board.folder / "rentals-run", role="secondary", party=HOSTILE, state="failed", error=HOSTILE, training={})
    for width in (400, 1200):
        page = browser_page(board.address, width, ready='document.querySelectorAll(".party").length === 2')
        assert (page.errors, page.requests, page.overflows) == ([], [], False), page.screenshot
        assert "epoch 4 of 8 · step 15 of 40 · about 16.7 s left" in page.text
        assert "validation rmse 16.7 after epoch 3" in page.text
        assert "train: activations, rentals → city" in page.text
        assert "2.0 MB transferred" in page.text
        assert page.text.count('<script>console.error("ran")</script>') == 2


@needs_browser
def test_who_waits_or_is_silent_is_not_at_work(board: BoardServer) -> None:
    put(board.folder / "city-run" / "flats-a", waiting=["secondary 'rentals' since 14:07:10"])
    put(
        board.folder / "rentals-run", party="rentals", role="secondary", training={}, waiting=["primary 'city' since 9"]
    )
    long_ago = time.time() - 60
    os.utime(board.folder / "rentals-run" / "progress.json", (long_ago, long_ago))
    page = browser_page(board.address, 400, ready='document.querySelectorAll(".party").length === 2')
    assert "0 of 2 running, 1 waiting, 1 silent" in page.text
    assert "waiting for secondary 'rentals' since 14:07:10" in page.text
    assert "left" not in page.text
    assert "waiting for primary" not in page.text


def test_what_is_no_number_is_none_for_the_page(board: BoardServer) -> None:
    text = json.dumps(progress_facts(seconds=float("nan")))
    assert "NaN" in text
    (board.folder / "city-run" / "flats-a" / "progress.json").write_text(text)
    assert json.loads(asked(board, f"/{board.token}/state")[1], parse_constant=pytest.fail)[0]["seconds"] is None


def test_parties_stay_in_their_order_whoever_wrote_last(board: BoardServer) -> None:
    for name in ("b", "a", "c"):
        put(board.folder / name, party=name, state="done")
    put(board.folder / "z", party="z")
    assert [party["folder"] for party in board.state()] == ["city-run/flats-a", "z", "a", "b", "c"]


BROKEN = {"number": 3, "loss": None, "validation_loss": float("nan"), "validation": {"rmse": float("inf")}}


@needs_browser
def test_a_diverged_training_and_a_foreign_file_hide_nobody(board: BoardServer) -> None:
    history = [*progress_facts()["training"]["history"][:2], BROKEN]
    put(board.folder / "city-run" / "flats-a", training={**progress_facts()["training"], "history": history})
    put(board.folder / "notary-run", party="notary", role="coordinator", training={}, phases=WAITING)
    (board.folder / "foreign").mkdir()
    (board.folder / "foreign" / "progress.json").write_text('{"state": "running"}')
    page = browser_page(board.address, 400, ready='document.querySelectorAll(".party").length === 3')
    assert (page.errors, page.overflows) == ([], False), page.screenshot
    assert "validation rmse not a number after epoch 3" in page.text
    assert "waiting while the others train 9.0 s" in page.text
    assert "foreign cannot be shown" in page.text


@needs_browser
def test_who_stays_for_predictions_does_not_wait_for_the_training(board: BoardServer) -> None:
    serving = {"name": "serve", "began": 11.0, "seconds": 4.0, "peak_bytes": 1}
    put(board.folder / "notary-run", party="notary", role="coordinator", training={}, phases=[*WAITING, serving])
    current = "document.querySelector('[data-key=notary-run] [aria-current]')"
    page = browser_page(board.address, 400, ready=current)
    assert "waited for the others 9.0 s" in page.text
    assert "ready for predictions 4.0 s" in page.text


@needs_browser
def test_the_curves_of_the_board_have_tips(board: BoardServer) -> None:
    shape = "document.querySelectorAll('.party svg .hover')[1]"
    moved = "new PointerEvent('pointermove', {bubbles: true, clientX: 50, clientY: 50})"
    drawn = "document.querySelector('.party svg')"
    act = f"new Promise(done => {{ const look = () => {drawn} ? done() : setTimeout(look, 5); look(); }})"
    act += f".then(() => {shape}.dispatchEvent({moved}))"
    page = browser_page(board.address, 400, act=act, ready="document.querySelector('.tip:not([hidden])')")
    assert "epoch 2: training loss 0.5, validation loss 0.6, validation rmse 25" in page.text
    assert (page.errors, page.overflows) == ([], False)


WAITING = [
    {"name": "link", "began": 0.0, "seconds": 2.0, "peak_bytes": 1},
    {"name": "wait", "began": 2.0, "seconds": 9.0, "peak_bytes": 1},
]
HOLD = """new Promise((done) => {
  const look = () => {
    const box = document.querySelector("[data-key='rentals-run'] .scroll");
    if (!box) return setTimeout(look, 5);
    box.focus();
    getSelection().selectAllChildren(document.querySelector("[data-key='rentals-run'] h2"));
    done();
  };
  look();
})"""
HELD = """document.body.innerText.includes("step 35 of 40")
  && document.activeElement === document.querySelector("[data-key='rentals-run'] .scroll")
  && getSelection().toString() === 'rentals'"""


@needs_browser
def test_focus_and_selection_outlive_what_changes(board: BoardServer, monkeypatch: pytest.MonkeyPatch) -> None:
    put(board.folder / "rentals-run", party="rentals", role="secondary", training={})
    state, asked_before = board.state, []

    def trains_on() -> list[dict[str, Any]]:
        asked_before.append(True)
        if len(asked_before) > 1:
            put(board.folder / "rentals-run", party="rentals", training={**progress_facts()["training"], "steps": 35})
            put(board.folder / "another-run", party="another")
        return state()

    monkeypatch.setattr(board, "state", trains_on)
    page = browser_page(board.address, 1200, act=HOLD, ready=HELD)
    assert page.errors == []


@needs_browser
def test_the_open_page_follows_a_party_to_its_end(board: BoardServer, monkeypatch: pytest.MonkeyPatch) -> None:
    place, state = board.folder / "city-run" / "flats-a", board.state

    def told_once() -> list[dict[str, Any]]:
        found = state()
        put(place, state="done")
        return found

    monkeypatch.setattr(board, "state", told_once)
    page = browser_page(board.address, 400, act=SEEN.format("1 of 1"), ready=SAYS.format("0 of 1"))
    assert page.errors == []
    assert "done" in page.text


@needs_browser
def test_a_finished_run_shows_its_best_epoch_and_result_and_opens_its_report(board: BoardServer) -> None:
    place, training = board.folder / "city-run" / "flats-a", progress_facts()["training"]
    history = [epoch | {"best": epoch["number"] < 3} for epoch in training["history"]]
    write_run(place, record_of())
    write_report(place)
    put(place, state="done", training={**training, "history": history})
    page = browser_page(board.address, 400, ready="document.querySelector('.result')")
    assert "test rmse 5.5, r2 0.7 · report" in page.text
    assert "best epoch 2: 25" in page.text
    page = browser_page(f"{board.address}report?run=city-run%2Fflats-a", 400)
    assert (page.errors, page.requests) == ([], [])
    assert "What the gates learned" in page.text


def test_only_reports_of_shown_runs_are_served(board: BoardServer) -> None:
    write_run(board.folder / "hidden", record_of())
    (board.folder / "hidden" / "report.html").write_text("not on the board")
    for folder in ("hidden", "../hidden", "city-run/flats-a", "", "%2Fetc"):
        assert asked(board, f"/{board.token}/report?run={folder}")[0] == 404


@needs_browser
def test_linking_has_an_estimate(board: BoardServer) -> None:
    lists = {"rentals": {"done": 300, "total": 900, "began": 1.0, "seconds": 4.0}, "schools": {"done": 5, "total": 5}}
    put(board.folder / "notary-run", party="notary", role="coordinator", training={}, linking=lists)
    page = browser_page(board.address, 400, ready='document.querySelectorAll(".party").length === 2')
    assert "linking rentals: 300 of 900 records · about 8.0 s left" in page.text
    assert "linking schools" not in page.text


@pytest.mark.parametrize(
    ("more", "pattern"), [([], r"Open http://\S+/\nPress Ctrl-C to stop.\n"), (["-q"], r"http://\S+/\n")]
)
def test_quiet_prints_the_address_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, more: list[str], pattern: str
) -> None:
    monkeypatch.setattr(BoardServer, "serve_forever", lambda self: None)
    with pytest.raises(SystemExit) as end:
        main(["runs", "--live", str(tmp_path), *more])
    assert not end.value.code
    assert re.fullmatch(pattern, capsys.readouterr().out)
