"""Files checked before work begins."""

from __future__ import annotations

import os
from pathlib import Path

from fedsim.errors import FileError


def check_readable(path: Path) -> None:
    """Refuse a path that is absent, a folder, or not ours to read."""
    if path.is_dir():
        raise FileError(f"{path} is a folder; name the file in it")
    if not path.exists():
        raise FileError(f"{path} does not exist; check the path")
    if not os.access(path, os.R_OK):
        raise FileError(f"{path} may not be read by this user; change its permissions")


def read_bytes(path: Path) -> bytes:
    """All bytes of a file that was checked before."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error.strerror}); check the disk") from error


def check_writable(path: Path) -> None:
    """Refuse an output path that could not be written at the end of a long run."""
    folder = path.parent
    if path.is_dir():
        raise FileError(f"{path} is a folder; name the file to write in it")
    if not folder.is_dir():
        raise FileError(f"the folder {folder} of the output {path.name} does not exist; create it first")
    if not os.access(folder, os.W_OK):
        raise FileError(f"the folder {folder} may not be written by this user; choose another one")
