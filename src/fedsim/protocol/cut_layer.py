"""Activations and gradients on the wire: precision, clipping and noise."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.errors import SettingError
from fedsim.privacy.keyed_prng import BLOCK_KEY_BYTES, WORD_DTYPE, derive_subkey, random_words
from fedsim.privacy.pair_noise import normal_from_words
from fedsim.splitnn.layers import clip_rows
from fedsim.splitnn.secondary_model import Secondary

# Tensors as the arrays of messages: whole precision, or half of it where the job says so


@dataclass(frozen=True)
class WireFormat:
    """How numbers travel: the array's type on the wire, and the way there and back."""

    name: str
    dtype: str
    pack: Callable[[Tensor], Tensor]
    unpack: Callable[[Tensor], Tensor]


WIRE_FORMATS = {
    form.name: form
    for form in (
        WireFormat("float32", "float32", lambda values: values, lambda values: values),
        WireFormat("float16", "float16", lambda values: values.half(), lambda values: values.float()),
        WireFormat(
            "bfloat16",
            "int16",
            lambda values: values.bfloat16().view(torch.int16),
            lambda values: values.view(torch.bfloat16).float(),
        ),
    )
}


def wire_format(word: str) -> WireFormat:
    """The form of a job's word."""
    if word not in WIRE_FORMATS:
        raise SettingError(f"wire='{word}' is unknown; choose from {', '.join(WIRE_FORMATS)}")
    return WIRE_FORMATS[word]


def pack_tensor(values: Tensor, form: WireFormat) -> NDArray[Any]:
    """A tensor as the array of a message.

    >>> pack_tensor(torch.ones(1, 2), wire_format("bfloat16")).dtype
    dtype('int16')
    """
    return form.pack(values.detach().cpu().contiguous()).numpy()


def unpack_tensor(values: NDArray[Any], form: WireFormat) -> Tensor | None:
    """The tensor of a message's array; nothing where it is of another form or not finite."""
    if values.dtype.name != form.dtype:
        return None
    tensor = form.unpack(torch.from_numpy(np.array(values)))  # a message's arrays are read-only views
    return tensor if bool(torch.isfinite(tensor).all()) else None


# Noise on what crosses the cut: on activations at the secondary, on gradients at the primary
#
# It comes from a secret of the party that sends, never from the job's seed, which the receiver knows. The noise of a
# row is a function of the secret, the occasion and the row: a party that started anew sends what it would have sent,
# and whoever asks for the same row on the same occasion again gets the same noise again, so asking twice averages
# nothing away. An occasion is the weights that answer, or the values that are sent: what differs never shares its
# noise.
#
# Letters: U rows, C width of the cut layer.


NOISE_ROWS = 4096


@dataclass(frozen=True, repr=False)
class CutNoise:
    """Rows of length ``clip`` at most, with noise of deviation ``noise * clip`` on every number."""

    clip: float
    noise: float
    secret: bytes

    def __repr__(self) -> str:
        return f"CutNoise(clip={self.clip}, noise={self.noise})"

    def noisy(self, values: Tensor, rows: NDArray[Any], occasion: str) -> Tensor:
        """Values (U, C) of these rows with the noise of this occasion."""
        if self.noise == 0:
            return values
        key = derive_subkey(self.secret, f"cut noise: {occasion}", BLOCK_KEY_BYTES)
        noise = np.empty(tuple(values.shape), np.float32)
        for first in range(0, len(rows), NOISE_ROWS):
            tile = slice(first, first + NOISE_ROWS)
            noise[tile] = normal_from_words(random_words(key, _blocks(rows[tile], values.shape[1])))
        return values + (self.noise * self.clip) * torch.from_numpy(noise)

    def protected(self, values: Tensor, rows: NDArray[Any], occasion: str) -> Tensor:
        """Clipped as well, where the network does not do it by itself."""
        return self.noisy(clip_rows(values, self.clip), rows, occasion)


def step_occasion(purpose: str, step: int) -> str:
    """The occasion of a training step."""
    return f"{purpose} of step {step}"


def values_occasion(purpose: str, values: Tensor) -> str:
    """The occasion of sending these very values: two trainings, or two receivers, must not share their noise."""
    return f"{purpose}: {hashlib.sha256(values.detach().contiguous().numpy().tobytes()).hexdigest()}"


def weights_occasion(weights: Mapping[str, Tensor], asked: bytes = b"") -> str:
    """The occasion of an answer outside training: these very weights, and what was asked beside the rows."""
    digest = hashlib.sha256(asked)
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].detach().cpu().contiguous().numpy().tobytes())
    return f"weights {digest.hexdigest()}"


def _blocks(rows: NDArray[Any], width: int) -> NDArray[np.uint64]:
    """A block of two words for every number: its row and its column."""
    blocks = np.empty((len(rows), width, 2), WORD_DTYPE)
    blocks[..., 0] = rows.astype(np.uint64)[:, None]
    blocks[..., 1] = np.arange(width, dtype=np.uint64)
    return blocks


# A secondary in this process behind the noise of one side or both, with a count of how much noise was really laid


@dataclass(eq=False)
class NoiseMeter:
    """By how much numbers differ from what they were before the noise."""

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
    """A secondary behind the noise on its answers, or on the gradients sent to it."""

    party: Secondary
    answers: CutNoise | None = None
    sends: CutNoise | None = None
    laid: NoiseMeter = field(default_factory=NoiseMeter)
    _rows: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        """All that crosses unchanged is the party's own."""
        return getattr(self.party, name)

    def activations(self, rows: Tensor, step: int) -> Tensor:
        self._rows = rows
        reply = self.party.activations(rows, step)
        if self.answers is None:
            return reply
        noisy = self.answers.noisy(reply, rows.numpy(), step_occasion("activations", step))
        self.laid.add(reply, noisy)
        return noisy

    def descend(self, gradients: Tensor, step: int) -> None:
        if self.sends is not None and self._rows is not None:
            short = clip_rows(gradients, self.sends.clip)
            gradients = self.sends.protected(gradients, self._rows.numpy(), step_occasion("gradients", step))
            self.laid.add(short, gradients)
        self.party.descend(gradients, step)

    def infer(self, rows: Tensor) -> Tensor:
        reply = self.party.infer(rows)
        return reply if self.answers is None else self.answers.noisy(reply, rows.numpy(), "after training")
