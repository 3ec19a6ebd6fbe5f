"""Digests of arrays, and files of named arrays and a few facts: safetensors with a digest in the metadata."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from fedsim.errors import FileError
from fedsim.storage.files import atomic_write
from fedsim.types import AnyArray

Tensors = Mapping[str, AnyArray]
Facts = Mapping[str, str]


def arrays_digest(*arrays: AnyArray) -> str:
    """Return the SHA-256 of types, shapes and values, in hexadecimal digits.

    >>> arrays_digest(np.arange(3)) == arrays_digest(np.arange(4))
    False
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def named_arrays_digest(kind: str, facts: Facts, arrays: Tensors) -> str:
    """Return the SHA-256 of a kind, its facts, and its arrays by name, whatever their order."""
    shapes = {name: [array.dtype.str, *array.shape] for name, array in arrays.items()}
    digest = hashlib.sha256(json.dumps([kind, facts, shapes], sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def save_tensors(path: Path | str, kind: str, tensors: Tensors, facts: Facts) -> None:
    """Write arrays and facts, atomically, to a file that only its owner may read; ``kind`` ends with a version."""
    digest = named_arrays_digest(kind, facts, tensors)
    write_safetensors(path, tensors, {"format": kind, "facts": json.dumps(facts), "sha256": digest}, mode=0o600)


def load_tensors(path: Path | str, kind: str) -> tuple[dict[str, AnyArray], dict[str, str]]:
    """Read the arrays and facts that :func:`save_tensors` wrote; any other file or any change is a ``FileError``."""
    metadata, tensors = read_safetensors(path, kind)
    try:
        facts = json.loads(metadata["facts"])
        intact = metadata["sha256"] == named_arrays_digest(kind, facts, tensors)
    except (ValueError, TypeError, LookupError, RecursionError):
        intact = False
    if not intact:
        raise damaged_file(path, kind)
    return tensors, facts


def write_safetensors(path: Path | str, tensors: Tensors, metadata: Mapping[str, str], *, mode: int = 0o666) -> None:
    """Write a safetensors file; equal content gives equal bytes."""
    packed = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    content = memoryview(safetensors.numpy.save(packed, dict(metadata)))
    # The library writes metadata in random order.
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(bytes(content[8:end])), sort_keys=True).encode()
    header += b" " * (-len(header) % 8)  # the standard aligns the data to eight bytes
    with atomic_write(Path(path), mode=mode) as part, part.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.write(content[end:])


def read_safetensors(path: Path | str, kind: str) -> tuple[dict[str, str], dict[str, AnyArray]]:
    """Read metadata and arrays of a safetensors file of this kind; the caller checks the digest.

    The library checks every size in the header against the size of the file before it takes memory, which matters for
    files of other organisations.
    """
    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != kind:
                raise damaged_file(path, kind)
            return metadata, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}", code="not-readable") from error
    except (SafetensorError, TypeError, ValueError) as error:
        raise damaged_file(path, kind) from error


def damaged_file(path: Path | str, kind: str) -> FileError:
    """Return the error for a file that is of another kind or has changed since it was written."""
    name, version = kind.rsplit(maxsplit=1)
    message = f"{path} is not a {name} file of version {version}, or it is damaged; create it again or copy it again"
    return FileError(message, code="damaged-file", path=path, kind=kind)
