"""Files and folders are written atomically and durably."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fedsim.errors import FileError
from fedsim.storage.files import (
    append_durably,
    atomic_folder,
    atomic_write,
    load_or_create_secret,
    remove_abandoned_parts,
)


def write(path: Path) -> None:
    with atomic_write(path) as part:
        part.write_text("new")


def disk_full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileError) as caught:
        write(pipe)
    assert caught.value.code == "not-a-regular-file"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    target, link = tmp_path / "store" / "links.parquet", tmp_path / "links.parquet"
    target.write_text("old")
    link.symlink_to(target)
    write(link)
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert list((tmp_path / "store").iterdir()) == [target]


def test_a_dangling_symbolic_link_creates_its_target(tmp_path: Path) -> None:
    (tmp_path / "links").symlink_to(tmp_path / "later")
    write(tmp_path / "links")
    assert (tmp_path / "later").read_text() == "new"


def test_symbolic_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(FileError):
        write(tmp_path / "a")


def test_a_name_as_long_as_the_disk_allows_can_be_written(tmp_path: Path) -> None:
    write(tmp_path / ("a" * 255))
    assert (tmp_path / ("a" * 255)).read_text() == "new"
    with pytest.raises(FileError) as caught:
        write(tmp_path / ("a" * 256))
    assert caught.value.code == "not-writable"
    assert len(list(tmp_path.iterdir())) == 1


KILLED = """
import os, signal, sys
from pathlib import Path
from fedsim.storage.files import atomic_write
with atomic_write(Path(sys.argv[1])) as part:
    part.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_half_written_file_of_a_killed_process_is_removed_at_the_next_start(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, tmp_path / "links"], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    write(tmp_path / "another")
    assert [path.name for path in tmp_path.iterdir()] == ["another"]


def test_the_half_written_file_of_a_running_writer_stays(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "links") as part:
        part.write_text("half")
        remove_abandoned_parts(tmp_path)
        assert part.is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["links"]


def test_file_and_folder_are_flushed_before_and_after_the_file_is_replaced(tmp_path: Path, monkeypatch) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def record_fsync(handle: int) -> None:
        calls.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "replace", lambda part, target: (calls.append("replace"), replace(part, target)))
    write(tmp_path / "finished")
    assert calls == ["file", "replace", "folder"]


def test_a_folder_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "model"
    with atomic_folder(path) as part:
        (part / "a").write_text("old")
    (tmp_path / ".model.part").mkdir()  # left by a process that was killed
    with atomic_folder(path) as part:
        (part / "b").write_text("new")
    assert [each.name for each in path.iterdir()] == ["b"]
    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(FileError) as caught, atomic_folder(path) as part:
        (part / "c").write_text("newer")
    assert caught.value.code == "not-writable"
    assert [each.name for each in path.iterdir()] == ["b"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_renamed_leaves_the_old_one(tmp_path: Path, monkeypatch) -> None:
    path, rename = tmp_path / "model", Path.rename
    with atomic_folder(path) as part:
        (part / "a").write_text("old")
    monkeypatch.setattr(Path, "rename", lambda part, to: disk_full() if part.suffix == ".part" else rename(part, to))
    with pytest.raises(FileError), atomic_folder(path):
        pass
    assert (path / "a").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_appending_cuts_off_an_incomplete_line_and_leaves_the_file_as_it_was_on_failure(tmp_path, monkeypatch) -> None:
    path = tmp_path / "log"
    append_durably(path, b"one\n")
    append_durably(path, b"two\nthr")
    append_durably(path, b"three\n", after=8)
    assert path.read_bytes() == b"one\ntwo\nthree\n"
    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(FileError):
        append_durably(path, b"four\n")
    assert path.read_bytes() == b"one\ntwo\nthree\n"


def test_the_secret_is_made_once_and_for_its_owner_alone(tmp_path: Path):
    path = tmp_path / "secret"
    made = load_or_create_secret(path)
    assert len(made) == 32
    assert load_or_create_secret(str(path)) == made != load_or_create_secret(tmp_path / "other")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(each.name for each in tmp_path.iterdir()) == ["other", "secret"]


@pytest.mark.parametrize(
    "content", [b"", b"ca11ab1e", b"z" * 64, b"ca11ab1e" * 9, b"\xff" * 64, b"ca11ab1e" * 7 + b"c"]
)
def test_a_short_or_garbled_secret_is_refused_and_kept(tmp_path: Path, content):
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(FileError) as caught:
        load_or_create_secret(path)
    assert caught.value.code == "bad-secret"
    assert path.read_bytes() == content
    assert "ca11ab1e" not in str(caught.value)


def test_a_secret_that_cannot_be_read_or_written_is_a_file_error(tmp_path: Path):
    with pytest.raises(FileError) as caught:
        load_or_create_secret(tmp_path)
    assert caught.value.code == "not-readable"
    with pytest.raises(FileError) as caught:
        load_or_create_secret(tmp_path / "absent" / "secret")
    assert caught.value.code == "not-writable"


def test_two_processes_that_create_a_secret_at_once_have_the_same(tmp_path, monkeypatch):
    path = tmp_path / "secret"
    first = load_or_create_secret(path)
    monkeypatch.setattr(type(path), "exists", lambda self: False)  # it looked before the first had written
    assert load_or_create_secret(path) == first
