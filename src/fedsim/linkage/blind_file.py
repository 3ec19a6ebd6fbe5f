"""What a coordinator keeps on its disk: finished lists, and the deliveries made of them.

Safetensors with a digest over everything in the file, readable by the owner alone: the order of a list is the secret
that makes row numbers pseudonyms.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from fedsim.errors import FileError
from fedsim.linkage.blind import Delivery, Linked
from fedsim.linkage.encoded_file import table_digest
from fedsim.linkage.whole_file import whole_file
from fedsim.types import EncodedTable, Scale

LINKED, DELIVERY = "fedsim linked list 1", "fedsim delivery 1"
Facts = dict[str, str]
Tensors = dict[str, NDArray[Any]]
Kept = TypeVar("Kept")


def save_linked(linked: Linked, path: Path | str) -> None:
    """Write a finished list, whole or not at all."""
    facts = {
        "n_bits": str(linked.candidates.n_bits),
        "fingerprint": linked.candidates.fingerprint,
        "mean": linked.scale.mean.hex(),
        "deviation": linked.scale.deviation.hex(),
        "sigma": linked.sigma.hex(),
        "tau": "" if linked.tau is None else linked.tau.hex(),
        "metric": linked.metric,
    }
    _save(path, LINKED, facts, {"filters": linked.candidates.bits, "order": linked.order, "allowed": linked.allowed})


def load_linked(path: Path | str) -> Linked:
    """The list that :func:`save_linked` wrote; a ``FileError`` if the file is anything else or has changed since."""
    return _load(path, LINKED, _linked)


def save_delivery(delivery: Delivery, path: Path | str) -> None:
    """Write a delivery, whole or not at all."""
    _save(path, DELIVERY, {}, _tensors(delivery))


def load_delivery(path: Path | str) -> Delivery:
    """The delivery that :func:`save_delivery` wrote; a ``FileError`` if the file is anything else or has changed."""
    return _load(path, DELIVERY, lambda _, tensors: Delivery(tensors["partner"], tensors["similarity"]))


def digest(value: EncodedTable | Delivery) -> str:
    """SHA-256 in hexadecimal digits: who holds a value of equal digest need not be sent it again.

    >>> digest(Delivery(np.zeros((1, 2), np.int32), np.zeros((1, 2), np.float32)))[:12]
    '44a14b9f2a55'
    """
    return table_digest(value) if isinstance(value, EncodedTable) else _digest(DELIVERY, {}, _tensors(value))


def _tensors(delivery: Delivery) -> Tensors:
    return {"partner": delivery.partner, "similarity": delivery.similarity}


def _linked(facts: Facts, tensors: Tensors) -> Linked:
    return Linked(
        candidates=EncodedTable(tensors["filters"], int(facts["n_bits"]), facts["fingerprint"]),
        order=tensors["order"],
        allowed=tensors["allowed"],
        scale=Scale(float.fromhex(facts["mean"]), float.fromhex(facts["deviation"])),
        sigma=float.fromhex(facts["sigma"]),
        tau=float.fromhex(facts["tau"]) if facts["tau"] else None,
        metric=facts["metric"],
    )


def _save(path: Path | str, kind: str, facts: Facts, tensors: Tensors) -> None:
    packed = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    metadata = {"format": kind, "facts": json.dumps(facts), "sha256": _digest(kind, facts, packed)}
    content = safetensors.numpy.save(packed, metadata)
    with whole_file(Path(path), mode=0o600) as part:
        part.write_bytes(content)


def _load(path: Path | str, kind: str, build: Callable[[Facts, Tensors], Kept]) -> Kept:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    try:
        tensors = safetensors.numpy.load(content)
        metadata = _metadata(content)
        facts = json.loads(metadata["facts"])
        if metadata["format"] == kind and metadata["sha256"] == _digest(kind, facts, tensors):
            return build(facts, tensors)
    except (SafetensorError, ValueError, TypeError, LookupError, RecursionError):
        pass  # the sentence below says it all
    raise FileError(
        f"{path} is no {kind.removesuffix(' 1')} of this release, or it is damaged; remove it and link again"
    )


def _metadata(content: bytes) -> Facts:
    length = int.from_bytes(content[:8], "little")
    return dict(json.loads(content[8 : 8 + length])["__metadata__"])


def _digest(kind: str, facts: Facts, tensors: Tensors) -> str:
    shapes = {name: [tensor.dtype.str, *tensor.shape] for name, tensor in tensors.items()}
    digest = hashlib.sha256(json.dumps([kind, facts, shapes], sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(np.ascontiguousarray(tensors[name]).data)
    return digest.hexdigest()
