"""A trained model: the primary's part and a way to every secondary, ready to predict and to be looked into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import InputError
from fedsim.splitnn.chance import Chance
from fedsim.splitnn.cut import Secondary
from fedsim.splitnn.features import Features
from fedsim.splitnn.gates.order import Neighbours
from fedsim.splitnn.part import Weights
from fedsim.splitnn.secondary import LocalSecondary
from fedsim.training.checks import check_lists
from fedsim.training.config import Config
from fedsim.training.data import HeldList, as_features
from fedsim.training.exchange import arranged
from fedsim.training.labels import Target
from fedsim.training.primary import Primary, Records
from fedsim.types import Floats


@dataclass(frozen=True, eq=False)
class Model:
    """What training leaves; ``groups`` says which secondaries answer for which list."""

    config: Config
    target: Target
    primary: Primary
    groups: tuple[tuple[Secondary, ...], ...]
    columns: tuple[int, int]  # numbers and codes of the primary
    name: str = "primary"

    def predict(self, features: Features | NDArray[Any], lists: Sequence[Neighbours]) -> Floats:
        """Predictions for new primary records, given their partners in every list.

        Numbers in the user's unit (n,), or probabilities per class (n, classes).
        """
        features = as_features(features)
        if not len(features):
            raise InputError(f"{self.name} has no records to predict; give at least one")
        records = self.records(features, lists)
        rows = np.arange(len(records.features))
        return self.target.outwards(self.primary.predict(records, rows)[0])

    def records(self, features: Features, lists: Sequence[Neighbours]) -> Records:
        """New records as the primary's network takes them: checked, in the method's order, on the device."""
        features.check(self.name)
        if features.columns != self.columns:
            raise InputError(
                "{} has {} columns of numbers and {} of codes; the model was trained on {} and {}".format(
                    self.name, *features.columns, *self.columns
                )
            )
        if len(lists) != len(self.groups):
            raise InputError(f"{len(lists)} lists of partners were given; the model was trained on {len(self.groups)}")
        held = [HeldList(neighbours, holders) for neighbours, holders in zip(lists, self.groups, strict=True)]
        check_lists(held, len(features), self.config.method.partners)
        rng, device = Chance(self.config.seed, self.name).rng("order of new records"), self.primary.part.device
        return Records(features.on(device), arranged(held, self.config.method, rng, device))

    def parts(self) -> dict[str, Weights]:
        """The weights of the primary and of every secondary in this process, by party."""
        holders = [holder for group in self.groups for holder in group]
        here = {holder.name: holder.part for holder in holders if isinstance(holder, LocalSecondary)}
        return {name: part.network.state_dict() for name, part in {self.name: self.primary.part, **here}.items()}
