"""The audit log: nothing is lost, nothing is changed unseen."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fedsim.errors import FileError, SettingError
from fedsim.protocol.messages import Party, Role
from fedsim.runs.run_folder import FIRST_HASH, TORN_LINE, AuditLog, read_audit_log

RENTALS = Party(Role.SECONDARY, "rentals")


def log_with(folder: Path, n_entries: int) -> AuditLog:
    log = AuditLog(folder / "audit.jsonl", RENTALS, clock=lambda: datetime(2025, 6, 1, 12, tzinfo=UTC))
    for number in range(n_entries):
        log.append("step done", {"step": number, "bytes": 10 * number})
    return log


def test_entries_say_who_what_and_when_and_hold_the_hash_before(tmp_path):
    log = log_with(tmp_path, 3)
    first, second, _ = read_audit_log(log.path)
    assert (first.time, first.party) == ("2025-06-01T12:00:00.000+00:00", "secondary 'rentals'")
    assert (first.previous, second.previous) == (FIRST_HASH, first.hash)
    assert (second.what, second.facts) == ("step done", {"step": 1, "bytes": 10})
    assert log.path.stat().st_mode & 0o077 == 0


def test_a_log_goes_on_after_a_restart(tmp_path):
    log_with(tmp_path, 3)
    log_with(tmp_path, 2)
    assert len(list(read_audit_log(tmp_path / "audit.jsonl"))) == 5


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda lines: [*lines[:2], lines[2].replace(b'"step":2', b'"step":7'), *lines[3:]], ("changed-line", 3)),
        (lambda lines: [*lines[:2], *lines[3:]], ("broken-chain", 3)),
        (lambda lines: lines[1:], ("broken-chain", 1)),
        (lambda lines: [lines[1], lines[0], *lines[2:]], ("broken-chain", 1)),
        (lambda lines: [*lines[:3], lines[2], *lines[3:]], ("broken-chain", 4)),
        (lambda lines: [*lines[:3], lines[3].replace(b",", b", "), *lines[4:]], ("changed-line", 4)),
        (lambda lines: [*lines, b"\n"], ("changed-line", 6)),
        (lambda lines: [*lines, lines[0][:20]], ("torn-line", 6)),
        (lambda lines: [b"id;lat\n1;2\n"], ("changed-line", 1)),
        (lambda lines: [b"x" * 200_000], ("changed-line", 1)),
        (lambda lines: [b'{"time":' + b"[" * 50_000 + b"\n"], ("changed-line", 1)),
    ],
)
def test_the_first_line_that_was_tampered_with_is_named(tmp_path, change, expected):
    path = log_with(tmp_path, 5).path
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(FileError) as caught:
        len(list(read_audit_log(path)))
    assert (caught.value.code, caught.value.line) == expected


def test_every_flipped_bit_is_seen(tmp_path):
    path = log_with(tmp_path, 2).path
    content = path.read_bytes()
    for place in range(0, len(content) - 1, 7):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(FileError):
            len(list(read_audit_log(path)))


@pytest.mark.parametrize("cut", [1, 40, 150])
def test_a_line_torn_by_a_kill_is_set_aside_and_the_log_says_so(tmp_path, cut):
    log = log_with(tmp_path, 3)
    content = log.path.read_bytes()
    log.path.write_bytes(content[:-cut])
    log.append("started")
    kept = list(read_audit_log(log.path))
    assert [entry.what for entry in kept] == ["step done", "step done", TORN_LINE, "started"]
    [aside] = tmp_path.glob("audit.jsonl.torn-*")
    assert aside.read_bytes() == content.splitlines(keepends=True)[-1][:-cut]


def test_a_log_that_never_got_beyond_its_first_line_goes_on(tmp_path):
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'{"facts"')
    log_with(tmp_path, 1)
    assert [entry.what for entry in read_audit_log(path)] == [TORN_LINE, "step done"]


def test_nothing_is_added_behind_a_damaged_line(tmp_path):
    log = log_with(tmp_path, 2)
    log.path.write_bytes(log.path.read_bytes() + b"garbage\n")
    with pytest.raises(FileError) as caught:
        log.append("started")
    assert caught.value.code == "changed-line"


def test_threads_take_turns(tmp_path):
    log = log_with(tmp_path, 0)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: log.append("step done", {"step": number}), range(80)))
    assert sorted(entry.facts["step"] for entry in read_audit_log(log.path)) == list(range(80))


def test_processes_that_are_killed_leave_a_log_that_goes_on(tmp_path):
    script = (
        "import sys; from pathlib import Path; from fedsim.runs.run_folder import AuditLog\n"
        "from fedsim.protocol.messages import Party, Role\n"
        "log = AuditLog(Path(sys.argv[1]), Party(Role.SECONDARY, 'rentals'))\n"
        "while True: print(log.append('step done', {'text': 'x' * 5000}).hash, flush=True)"
    )
    path = tmp_path / "audit.jsonl"
    hashes = []
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE, text=True) as running:
            hashes += [running.stdout.readline().strip() for _ in range(20)]
            running.send_signal(signal.SIGKILL)
    log_with(tmp_path, 1)
    assert set(hashes) <= {entry.hash for entry in read_audit_log(path)}


@pytest.mark.parametrize("facts", [{"x": float("nan")}, {"x": object()}, {"x": "y" * 70_000}])
def test_facts_are_small_and_plain(tmp_path, facts):
    log = log_with(tmp_path, 1)
    with pytest.raises(SettingError):
        log.append("odd", facts)
    assert len(list(read_audit_log(log.path))) == 1


def test_a_full_disk_leaves_the_log_whole(tmp_path):
    log = log_with(tmp_path, 2)
    before = log.path.read_bytes()
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, limits[1]))
        with pytest.raises(FileError) as caught:
            log.append("step done", {"step": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.code == "audit-log-unwritable"
    assert log.path.read_bytes() == before


def test_what_is_no_log_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none", Path("/dev/zero"), Path("a\0b")):
        with pytest.raises(FileError):
            len(list(read_audit_log(path)))
    with pytest.raises(FileError) as caught:
        AuditLog(Path(os.devnull) / "audit.jsonl", RENTALS).append("started")
    assert caught.value.code == "not-a-folder"


def test_a_line_is_json_that_others_can_read(tmp_path):
    [line] = log_with(tmp_path, 1).path.read_text(encoding="ascii").splitlines()
    assert set(json.loads(line)) == {"time", "party", "what", "facts", "previous", "hash"}
