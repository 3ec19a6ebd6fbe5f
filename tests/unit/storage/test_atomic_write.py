"""A file takes the place of another file, and of nothing else."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fedsim.errors import FileError
from fedsim.storage.files import atomic_write


def write(path: Path) -> None:
    with atomic_write(path) as part:
        part.write_text("new")


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileError, match="no regular file"):
        write(pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_symbolic_link_stays_one_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    target, link = tmp_path / "store" / "links.parquet", tmp_path / "links.parquet"
    target.write_text("old")
    link.symlink_to(target)
    write(link)
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert list((tmp_path / "store").iterdir()) == [target]


def test_a_symbolic_link_to_nothing_yet_makes_its_target(tmp_path: Path) -> None:
    (tmp_path / "links").symlink_to(tmp_path / "later")
    write(tmp_path / "links")
    assert (tmp_path / "later").read_text() == "new"


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(FileError, match="cannot write"):
        write(tmp_path / "a")


def test_the_longest_name_the_disk_takes_can_be_written(tmp_path: Path) -> None:
    write(tmp_path / ("a" * 255))
    assert (tmp_path / ("a" * 255)).read_text() == "new"


def test_a_longer_name_is_a_file_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot write"):
        write(tmp_path / ("a" * 256))
    assert list(tmp_path.iterdir()) == []
