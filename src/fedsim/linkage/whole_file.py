"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsim.errors import FileError


@contextmanager
def whole_file(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """A temporary name beside ``path`` that takes its place when the block ends well and vanishes when it does not.

    The file exists with its permissions before a byte is written: a secret is never readable by others for a moment.
    A symbolic link stays one: the file it points to is replaced.
    """
    try:
        target = _target(path)
        # Its own short name: that of a long target would not leave room for an ending.
        part = target.with_name(f".fedsim-{secrets.token_hex(6)}.part")
        try:
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
            yield part
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(
            f"cannot write {path}: {error.strerror or 'the disk refused'}; check name, folder and space"
        ) from error


def _target(path: Path) -> Path:
    """Where the bytes go; a device, a pipe or a folder would be lost if a file took its place."""
    try:
        target = path.resolve()
    except RuntimeError:  # how Python before 3.13 reports links in a circle
        raise FileError(f"cannot write {path}: its symbolic links run in a circle; choose another name") from None
    if target.exists() and not target.is_file():
        raise FileError(f"cannot write {path}: it is no regular file but a folder, device or pipe; choose another name")
    return target
