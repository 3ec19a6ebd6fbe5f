"""A trained model from its weights, without the data it was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from fedsim.splitnn.chance import Chance
from fedsim.splitnn.device import device_named
from fedsim.splitnn.features import Features
from fedsim.training.config import Config
from fedsim.training.data import HeldList
from fedsim.training.exchange import arranged
from fedsim.training.labels import Target
from fedsim.training.model import Model
from fedsim.training.prepare import shapes, unlearnt
from fedsim.training.primary import Primary

NOBODY = np.zeros(0, dtype=np.int64)


def restored(
    config: Config,
    target: Target,
    columns: Features,
    lists: Sequence[HeldList],
    weights: Mapping[str, Tensor],
    name: str = "primary",
) -> Model:
    """The model whose primary has learnt these weights; the holders have learnt theirs.

    Only the shapes of ``columns`` and ``lists`` count, so they need no records (``Neighbours.without_records``);
    ``columns`` must say which of its numbers are spread.
    """
    device = device_named(config.device)
    resident = arranged(lists, config.method, Chance(config.seed, name).rng("order"), device)
    part = unlearnt(columns, shapes(resident, NOBODY), target.task, config, name)
    part.fill(weights)
    groups = tuple(held.holders for held in lists)
    return Model(config, target, Primary(part, target.task), groups, columns.columns, name)
