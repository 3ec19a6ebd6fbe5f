"""What the primary gets of the partners in one list: rows that it holds, or activations at every step.

``LocalRows`` are those of an estimator's tables, or those that a job fetched once. With ``RemoteRows`` in the runtime,
the paper's way, rows stay with the secondary, which answers at every step. Both pass the same contract tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fedsim.splitnn.secondary_model import Secondary
from fedsim.training import NeighbourList, SecondaryData
from fedsim.training.boosted_trees import EmbeddedPartners
from fedsim.training.loop import TrainingContext, start_local_secondaries
from fedsim.types import Floats32, Links


class PartnerFeatures(Protocol):
    """The partners of all primary records in one list, as training uses them."""

    def open(self, context: TrainingContext) -> NeighbourList:
        """Return the list and the holders of its rows, at step 0; after a restart of a party it is called again."""
        ...

    def embedded(self) -> EmbeddedPartners | None:
        """Return what trees may see of the partners, or None if that is nothing."""
        ...

    def finish(self) -> None:
        """Release the holders: training and everything that explains the model has been computed."""
        ...


@dataclass(frozen=True, eq=False)
class PartnerInputs:
    """The partners of new records in one list: links, the holders of the rows, and what trees see of these."""

    links: Links
    holders: tuple[Secondary, ...]
    embedded: EmbeddedPartners | None = None


class NewPartners(Protocol):
    """The partners of new records in one list, while a model predicts."""

    def absent(self, queries: Any) -> tuple[str, ...]:
        """Wait for the holders that these records require, and name those that stay away and may be missing."""
        ...

    def inputs(self, links: Links) -> PartnerInputs | None:
        """Return what a model takes of linked records, or None if their rows must be requested and may be missing."""
        ...


@dataclass(frozen=True, eq=False)
class LocalRows:
    """Rows in this process, of one secondary and of those that are aligned with it.

    ``embedding`` is what trees see of every row; None hides the rows from them.
    """

    parties: Sequence[SecondaryData]  # the first has the list
    embedding: Floats32 | None = None  # (m, W)

    def open(self, context: TrainingContext) -> NeighbourList:
        """Return the list with new local networks over the rows."""
        return start_local_secondaries(self.parties, context)[0]

    def embedded(self) -> EmbeddedPartners | None:
        """Return the embedded rows with the list."""
        neighbours: Links | None = self.parties[0].neighbours
        if self.embedding is None or neighbours is None:
            return None
        return EmbeddedPartners(self.embedding, neighbours)

    def finish(self) -> None:
        """Do nothing: nobody waits."""
