"""A trained model: all parties' parts in one process, ready to predict and to be looked into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import InputError
from fedsim.splitnn.chance import Chance
from fedsim.splitnn.features import Features
from fedsim.splitnn.gates.order import Neighbours
from fedsim.splitnn.part import Weights
from fedsim.splitnn.secondary import LocalSecondary
from fedsim.training.checks import check_neighbours, check_partners
from fedsim.training.config import Config
from fedsim.training.data import as_features
from fedsim.training.exchange import PartnerList
from fedsim.training.labels import Target
from fedsim.training.primary import Primary, Records
from fedsim.types import Floats


@dataclass(frozen=True, eq=False)
class Model:
    """What training leaves; ``groups`` says which secondaries answer for which list."""

    config: Config
    target: Target
    primary: Primary
    groups: tuple[tuple[LocalSecondary, ...], ...]
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
        if (features.numbers.shape[1], features.codes.shape[1]) != self.columns:
            raise InputError(
                f"{self.name} has {features.numbers.shape[1]} columns of numbers and {features.codes.shape[1]} of "
                f"codes; the model was trained on {self.columns[0]} and {self.columns[1]}"
            )
        if len(lists) != len(self.groups):
            raise InputError(f"{len(lists)} lists of partners were given; the model was trained on {len(self.groups)}")
        for neighbours, holders in zip(lists, self.groups, strict=True):
            check_neighbours(neighbours, holders[0].name, len(features), holders[0].n_records)
            check_partners(neighbours, holders[0].name, self.config.method.partners)
        device = self.primary.part.device
        return Records(features.on(device), self._resident(lists))

    def parts(self) -> dict[str, Weights]:
        """Every party's weights, by party."""
        holders = [holder for group in self.groups for holder in group]
        return {
            self.name: self.primary.part.network.state_dict(),
            **{holder.name: holder.part.network.state_dict() for holder in holders},
        }

    def _resident(self, lists: Sequence[Neighbours]) -> tuple[PartnerList, ...]:
        rng = Chance(self.config.seed, self.name).rng("order of new records")
        return tuple(
            PartnerList.of(self.config.method.arrange(neighbours, rng), holders, self.primary.part.device)
            for neighbours, holders in zip(lists, self.groups, strict=True)
        )
