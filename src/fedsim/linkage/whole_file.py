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
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        yield part
        part.replace(path)
    except OSError as error:
        raise FileError(
            f"cannot write {path}: {error.strerror or 'the disk refused'}; check folder and space"
        ) from error
    finally:
        part.unlink(missing_ok=True)
