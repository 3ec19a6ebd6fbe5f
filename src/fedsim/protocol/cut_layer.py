"""Activations and gradients on the wire.

Letters: U rows, C width of the cut layer.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsim.registry import WIRE_FORMATS
from fedsim.types import AnyArray

MAX_VALUE = 1e6  # of an activation or gradient


@dataclass(frozen=True)
class WireFormat:
    """How tensors travel: the type of the array in a message, the conversion to and from it, and the largest value."""

    dtype: str
    pack: Callable[[Tensor], Tensor]
    unpack: Callable[[Tensor], Tensor]
    scale_columns: int = 0  # of the array, after those of the values
    most: float = MAX_VALUE  # of the tensors that we receive


MOST_INT8 = 127


def _pack_int8(values: Tensor) -> Tensor:
    """Return whole multiples of a scale per row, whose bits follow them: (U, C) -> (U, C + 2).

    The scale has eight binary digits, so that a row's largest value is at most 127.25 of it and rounds to 127.
    """
    scale = (values.abs().amax(dim=1) / MOST_INT8).bfloat16()  # (U,)
    whole = (values / scale.float().clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round()
    return torch.cat([whole.to(torch.int8), scale.view(torch.int8).reshape(len(scale), 2)], dim=1)


def _unpack_int8(packed: Tensor) -> Tensor:
    bits = packed[:, -2:].clone(memory_format=torch.contiguous_format)  # at an even address
    return packed[:, :-2].float() * bits.view(torch.bfloat16).float()


FLOAT32 = WireFormat("float32", lambda x: x, lambda x: x)
FLOAT16 = WireFormat("float16", Tensor.half, Tensor.float)
BFLOAT16 = WireFormat("int16", lambda x: x.bfloat16().view(torch.int16), lambda x: x.view(torch.bfloat16).float())
INT8 = WireFormat("int8", _pack_int8, _unpack_int8, scale_columns=2)


def wire_format(name: str) -> WireFormat:
    """Return the wire format that a job names.

    >>> wire_format("float32").most
    1000000.0
    """
    form: WireFormat = WIRE_FORMATS[name]
    return form


def pack_tensor(values: Tensor, form: WireFormat) -> AnyArray:
    """Convert a tensor to the array of a message.

    >>> pack_tensor(torch.ones(1, 2), wire_format("bfloat16")).dtype
    dtype('int16')
    """
    return form.pack(values.detach().cpu().contiguous()).numpy()


def unpack_tensor(values: AnyArray, form: WireFormat, shape: tuple[int, int | None]) -> Tensor | None:
    """Convert the array of a message to a tensor of this shape, (U, C) or (U, None) for any width.

    Return None unless type and shape are right, before memory is allocated, and every value is a number up to
    ``form.most``: 3e38 is finite, too, but turns weights into NaN.
    """
    rows, width = len(values), values.shape[1] - form.scale_columns
    if values.dtype.name != form.dtype or width < 1 or (rows, width) != (shape[0], shape[1] or width):
        return None
    tensor = form.unpack(torch.from_numpy(np.array(values)))  # arrays of a message are read-only views
    return tensor if not tensor.numel() or bool(tensor.abs().max() <= form.most) else None  # not so for NaN


def weights_digest(weights: Mapping[str, Tensor], request: bytes = b"") -> str:
    """Return a digest of the weights that answer a request, by which a repeated question is recognised."""
    digest = hashlib.sha256(request)
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].detach().cpu().contiguous().numpy().tobytes())
    return f"weights {digest.hexdigest()}"
