"""Tensors as the arrays of messages: whole precision, or half of it where the job says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.errors import SettingError


@dataclass(frozen=True)
class Form:
    """How numbers travel: the array's type on the wire, and the way there and back."""

    name: str
    dtype: str
    pack: Callable[[Tensor], Tensor]
    unpack: Callable[[Tensor], Tensor]


FORMS = {
    form.name: form
    for form in (
        Form("float32", "float32", lambda values: values, lambda values: values),
        Form("float16", "float16", lambda values: values.half(), lambda values: values.float()),
        Form(
            "bfloat16",
            "int16",
            lambda values: values.bfloat16().view(torch.int16),
            lambda values: values.view(torch.bfloat16).float(),
        ),
    )
}


def form_named(word: str) -> Form:
    """The form of a job's word."""
    if word not in FORMS:
        raise SettingError(f"wire='{word}' is unknown; choose from {', '.join(FORMS)}")
    return FORMS[word]


def packed(values: Tensor, form: Form) -> NDArray[Any]:
    """A tensor as the array of a message.

    >>> packed(torch.ones(1, 2), form_named("bfloat16")).dtype
    dtype('int16')
    """
    return form.pack(values.detach().cpu().contiguous()).numpy()


def unpacked(values: NDArray[Any], form: Form) -> Tensor | None:
    """The tensor of a message's array; nothing where it is of another form or not finite."""
    if values.dtype.name != form.dtype:
        return None
    tensor = form.unpack(torch.from_numpy(np.array(values)))  # a message's arrays are read-only views
    return tensor if bool(torch.isfinite(tensor).all()) else None
