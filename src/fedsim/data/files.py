"""Files checked before work begins."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedsim.errors import FileError, SettingError


def check_readable(path: Path) -> None:
    """Refuse a path that is absent, a folder, or not ours to read."""
    with _named(path):
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


def check_outputs(outputs: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Refuse outputs that could not be written, that name one file twice, or that would replace an input."""
    for path in outputs:
        check_writable(path)
    targets = {path.resolve() for path in outputs}
    if len(targets) < len(outputs):
        raise SettingError(f"the outputs {' and '.join(map(str, outputs))} are the same file; choose two")
    for path in inputs:
        if path.resolve() in targets:
            raise SettingError(f"an output would replace the input {path}; choose another name")


def check_writable(path: Path) -> None:
    """Refuse an output path that could not be written at the end of a long run."""
    with _named(path):
        target = path.resolve()
        if path.is_dir():
            raise FileError(f"{path} is a folder; name the file to write in it")
        if target.exists() and not target.is_file():
            raise FileError(f"{path} is a device or pipe, no regular file; choose another name")
        folder = target.parent if path.is_symlink() else path.parent
        if not folder.is_dir():
            raise FileError(f"the folder {folder} of the output {path.name} does not exist; create it first")
        if not os.access(folder, os.W_OK):
            raise FileError(f"the folder {folder} may not be written by this user; choose another one")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """A path that the system cannot even look up: too long a name, links in a circle."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "the system cannot look it up"
        raise FileError(f"the path {path} cannot be used: {reason}; choose another name") from error
