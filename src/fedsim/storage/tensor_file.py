"""Digests of arrays, and files of named arrays with metadata (safetensors files that include a digest)."""

import hashlib
import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsim.errors import FileError
from fedsim.registry import LazyModule
from fedsim.storage.files import atomic_write
from fedsim.types import AnyArray

if TYPE_CHECKING:
    import safetensors
    import safetensors.numpy as tensor_bytes
else:  # experiments that store nothing run where safetensors is not installed
    safetensors, tensor_bytes = LazyModule("safetensors"), LazyModule("safetensors.numpy")

Tensors = Mapping[str, AnyArray]
Facts = Mapping[str, str]
MAPPED_BYTES = 128 << 20  # larger scratch arrays are stored in a file


def scratch_array(shape: tuple[int, ...], dtype: Any, folder: Path | None) -> AnyArray:
    """Return an array to be filled; a large one is memory-mapped from a file in this folder.

    The file has no name, so nobody else can open it and a killed process leaves nothing behind. Without a folder, the
    array is in memory.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if folder is None or size < max(1, MAPPED_BYTES):
        return np.empty(shape, dtype)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(size)
            return np.memmap(file, dtype, "r+", shape=shape)
    except OSError as error:
        message = f"cannot create a file of {size:,} bytes in {folder}: {error.strerror}; free space on that disk"
        raise FileError(message, code="not-writable") from error


def arrays_digest(*arrays: AnyArray) -> str:
    """Return the SHA-256 of types, shapes and values as hexadecimal digits.

    >>> arrays_digest(np.arange(3)) == arrays_digest(np.arange(4))
    False
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def named_arrays_digest(kind: str, facts: Facts, arrays: Tensors) -> str:
    """Return the SHA-256 of a kind, its facts and its named arrays, independent of their order."""
    shapes = {name: [array.dtype.str, *array.shape] for name, array in arrays.items()}
    digest = hashlib.sha256(json.dumps([kind, facts, shapes], sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def save_tensors(path: Path | str, kind: str, tensors: Tensors, facts: Facts) -> None:
    """Write arrays and facts atomically to a file that only its owner may read; ``kind`` ends with a version."""
    digest = named_arrays_digest(kind, facts, tensors)
    write_safetensors(path, tensors, {"format": kind, "facts": json.dumps(facts), "sha256": digest}, mode=0o600)


def load_tensors(path: Path | str, kind: str, *, mapped: bool = False) -> tuple[dict[str, AnyArray], dict[str, str]]:
    """Read arrays and facts written by :func:`save_tensors`; raise ``FileError`` for any other or changed file.

    ``mapped`` arrays stay in the file and are paged in on demand; changing one does not change the file.
    """
    metadata, tensors = read_safetensors(path, kind, mapped=mapped)
    try:
        facts = json.loads(metadata["facts"])
        intact = metadata["sha256"] == named_arrays_digest(kind, facts, tensors)
    except (ValueError, TypeError, LookupError, RecursionError):
        intact = False
    if not intact:
        raise damaged_file(path, kind)
    return tensors, facts


def write_safetensors(path: Path | str, tensors: Tensors, metadata: Mapping[str, str], *, mode: int = 0o666) -> None:
    """Write a safetensors file; equal content produces equal bytes. Contiguous arrays are not copied."""
    packed = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    # The library determines the types and the order of the arrays, but it writes metadata in random order.
    content = tensor_bytes.save({name: array.reshape(-1)[:0] for name, array in packed.items()}, dict(metadata))
    layout = _parse_header(content)
    order, end = [name for name in layout if name in packed], 0
    for name in order:
        start, end = end, end + packed[name].nbytes
        layout[name] |= {"shape": packed[name].shape, "data_offsets": [start, end]}
    header = json.dumps(layout, sort_keys=True).encode()
    header += b" " * (-len(header) % 8)  # the standard aligns the data to eight bytes
    with atomic_write(Path(path), mode=mode) as part, part.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name in order:
            file.write(packed[name].reshape(-1).view(np.uint8).data)


def _parse_header(content: bytes) -> dict[str, Any]:
    """Return the header of a safetensors file that the library has written or checked."""
    return dict(json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]))


def read_safetensors(
    path: Path | str, kind: str, *, mapped: bool = False
) -> tuple[dict[str, str], dict[str, AnyArray]]:
    """Read the metadata and arrays of a safetensors file of this kind; the caller checks the digest.

    The library checks every size in the header against the file size before it allocates memory, which matters for
    files from other organisations.
    """
    try:
        with safetensors.safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != kind:
                raise damaged_file(path, kind)
            if not mapped:
                return metadata, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        return metadata, _map_arrays(Path(path))
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}", code="not-readable") from error
    except (safetensors.SafetensorError, TypeError, ValueError) as error:
        raise damaged_file(path, kind) from error


def _map_arrays(path: Path) -> dict[str, AnyArray]:
    """Memory-map the arrays of a file whose header the library has checked."""
    with path.open("rb") as file:
        first = file.read(8)
        header, data = _parse_header(first + file.read(int.from_bytes(first, "little"))), file.tell()
    found: dict[str, AnyArray] = {}
    for name in sorted(header.keys() - {"__metadata__"}):
        kind, shape = header[name]["dtype"], tuple(header[name]["shape"])  # a type is F32, I64 or BOOL
        dtype = np.dtype("?" if kind == "BOOL" else f"<{kind[0].lower()}{int(kind[1:]) // 8}")
        start = data + header[name]["data_offsets"][0]
        found[name] = np.memmap(path, dtype, "c", start, shape) if math.prod(shape) else np.empty(shape, dtype)
    return found


def damaged_file(path: Path | str, kind: str) -> FileError:
    """Return the error for a file that is of another kind or has changed since it was written."""
    name, version = kind.rsplit(maxsplit=1)
    message = f"{path} is not a {name} file of version {version}, or it is damaged; create it again or copy it again"
    return FileError(message, code="damaged-file", path=path, kind=kind)
