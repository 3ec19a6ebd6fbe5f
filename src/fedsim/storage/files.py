"""Check paths before work starts and write files atomically."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedsim.errors import FileError, SettingError

# Files checked before work begins


def check_readable(path: Path) -> None:
    """Refuse a path that is absent, a folder, or not ours to read."""
    with _translate_path_errors(path):
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


def check_output_paths(outputs: Sequence[Path], inputs: Sequence[Path]) -> None:
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
    with _translate_path_errors(path):
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
def _translate_path_errors(path: Path) -> Iterator[None]:
    """A path that the system cannot even look up: too long a name, links in a circle."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "the system cannot look it up"
        raise FileError(f"the path {path} cannot be used: {reason}; choose another name") from error


# Files that appear whole or not at all


@contextmanager
def atomic_write(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """A temporary name beside ``path`` that takes its place when the block ends well and vanishes when it does not.

    The file exists with its permissions before a byte is written: a secret is never readable by others for a moment.
    A symbolic link stays one: the file it points to is replaced.
    """
    try:
        target = _resolve_target(path)
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


def _resolve_target(path: Path) -> Path:
    """Where the bytes go; a device, a pipe or a folder would be lost if a file took its place."""
    try:
        target = path.resolve()
    except RuntimeError:  # how Python before 3.13 reports links in a circle
        raise FileError(f"cannot write {path}: its symbolic links run in a circle; choose another name") from None
    if target.exists() and not target.is_file():
        raise FileError(f"cannot write {path}: it is no regular file but a folder, device or pipe; choose another name")
    return target
