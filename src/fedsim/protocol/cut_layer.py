"""Activations and gradients on the wire: precision, clipping and noise.

Letters: U rows, C width of the cut layer.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedsim.privacy import keyed_prng, pair_noise
from fedsim.registry import WIRE_FORMATS
from fedsim.splitnn import layers, secondary_model
from fedsim.types import AnyArray, Words

NOISE_ROWS = 4096  # rows whose noise is drawn at a time
MAX_VALUE = 1e6  # of an activation or gradient, if the job does not clip it
MAX_DEVIATIONS = 10.0  # of Gaussian noise, beyond any that is drawn


class ClippingTerms(Protocol):
    """Length to which the job clips rows, and the noise on them as a multiple of it."""

    @property
    def clip(self) -> float: ...

    @property
    def noise(self) -> float: ...


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

    The scale has eight binary digits, so that a row's largest value is at most 127.25 of it and rounds to 127. Clipping
    and noise come first: what is derived from protected rows alone reveals no more than they do.
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


def wire_format(name: str, received: ClippingTerms | None = None) -> WireFormat:
    """Return the wire format that a job names; ``received`` are its terms for the tensors that we receive.

    >>> wire_format("float32").most
    1000000.0
    """
    form: WireFormat = WIRE_FORMATS[name]
    if received is None:
        return form
    most = received.clip * (1 + MAX_DEVIATIONS * received.noise) * 1.01  # a hundredth for rounding
    return replace(form, most=most)


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


# Noise at the cut: on activations at the secondary, on gradients at the primary. It is derived from a secret of the
# sender, never from the job's seed, which the receiver knows. The noise of a row is a function of the secret, the
# occasion and the row, so a restarted party sends the same values again and repeated requests cannot average the noise
# away. An occasion is the weights that produce an answer, or the values that are sent: different values never share
# their noise. If rows are hidden, the noise belongs to the link, that is to a row and a record of the primary: equal
# noise of one row in two links would show that both lead to it.


@dataclass(frozen=True)
class CutNoise:
    """Clips rows to length ``clip`` and adds Gaussian noise with standard deviation ``noise * clip``."""

    clip: float
    noise: float
    secret: bytes = field(repr=False)

    def add_noise(self, values: Tensor, rows: AnyArray, occasion: str, records: Words | None = None) -> Tensor:
        """Return values (U, C) of these rows with the noise of this occasion; with ``records`` (U,), of these links."""
        if self.noise == 0:
            return values
        key = keyed_prng.derive_subkey(self.secret, f"cut noise: {occasion}", keyed_prng.BLOCK_KEY_BYTES)
        noise = np.empty(tuple(values.shape), np.float32)
        for first in range(0, len(rows), NOISE_ROWS):
            tile = rows[first : first + NOISE_ROWS]
            # Two words per value: row and column, or the record, and row and column in the two halves of a word.
            blocks = np.empty((len(tile), values.shape[1], 2), keyed_prng.WORD_DTYPE)
            columns, names = np.arange(values.shape[1], dtype=np.uint64), tile.astype(np.uint64)[:, None]
            if records is None:
                blocks[..., 0], blocks[..., 1] = names, columns
            else:
                blocks[..., 0] = records[first : first + NOISE_ROWS, None]
                blocks[..., 1] = names << np.uint64(32) | columns
            noise[first : first + NOISE_ROWS] = pair_noise.normal_from_words(keyed_prng.random_words(key, blocks))
        return values + (self.noise * self.clip) * torch.from_numpy(noise).to(values.device)

    def clip_and_add_noise(self, values: Tensor, rows: AnyArray, occasion: str) -> Tensor:
        """Clip the rows first, for values that the network does not clip itself."""
        return self.add_noise(layers.clip_rows(values, self.clip), rows, occasion)


def step_occasion(purpose: str, step: int) -> str:
    """Return the occasion of a training step."""
    return f"{purpose} of step {step}"


def values_occasion(purpose: str, values: Tensor) -> str:
    """Return the occasion of sending exactly these values: two runs, or two receivers, must not share noise."""
    return f"{purpose}: {hashlib.sha256(values.detach().contiguous().numpy().tobytes()).hexdigest()}"


def weights_occasion(weights: Mapping[str, Tensor], request: bytes = b"") -> str:
    """Return the occasion of an answer by exactly these weights to a request."""
    digest = hashlib.sha256(request)
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].detach().cpu().contiguous().numpy().tobytes())
    return f"weights {digest.hexdigest()}"


@dataclass(eq=False)
class NoiseMeter:
    """Measures the noise that was really added."""

    squares: float = 0.0
    numbers: int = 0

    def add(self, before: Tensor, after: Tensor) -> None:
        self.squares += float((after - before).double().square().sum())
        self.numbers += before.numel()

    @property
    def deviation(self) -> float:
        return math.sqrt(self.squares / max(1, self.numbers))


@dataclass(eq=False, repr=False)
class NoisySecondary:
    """A secondary in this process with noise on its activations, or on the gradients sent to it."""

    party: secondary_model.Secondary
    activation_noise: CutNoise | None = None
    gradient_noise: CutNoise | None = None
    meter: NoiseMeter = field(default_factory=NoiseMeter)
    _rows: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else to the secondary."""
        return getattr(self.party, name)

    def activations(self, rows: Tensor, step: int) -> Tensor:
        self._rows = rows
        reply = self.party.activations(rows, step)
        if self.activation_noise is None:
            return reply
        noisy = self.activation_noise.add_noise(reply, rows.cpu().numpy(), step_occasion("activations", step))
        self.meter.add(reply, noisy)
        return noisy

    def descend(self, gradients: Tensor, step: int) -> None:
        if self.gradient_noise is not None and self._rows is not None:
            clipped = layers.clip_rows(gradients, self.gradient_noise.clip)
            occasion = step_occasion("gradients", step)
            gradients = self.gradient_noise.add_noise(clipped, self._rows.cpu().numpy(), occasion)
            self.meter.add(clipped, gradients)
        self.party.descend(gradients, step)

    def infer(self, rows: Tensor) -> Tensor:
        reply, noise = self.party.infer(rows), self.activation_noise
        return reply if noise is None else noise.add_noise(reply, rows.cpu().numpy(), "after training")
