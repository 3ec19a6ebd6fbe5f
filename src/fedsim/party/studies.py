"""Trainings to compare with, beside the job's own: a secondary takes part in as many as its owner allows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedsim.errors import FileError, PolicyError
from fedsim.linkage.whole_file import whole_file
from fedsim.protocol.messages import Begin
from fedsim.protocol.parties import Party
from fedsim.splitnn.below import Below, start_secondary
from fedsim.splitnn.chance import Chance
from fedsim.splitnn.features import Features
from fedsim.splitnn.secondary import LocalSecondary


@dataclass(frozen=True)
class Studies:
    """Counts them in the run folder, through all processes."""

    party: Party
    path: Path
    most: int

    def begin(self, features: Features, below: Below, asked: Begin) -> LocalSecondary:
        """A network of the seed in ``below``, on shuffled rows for a placebo; no checkpoint is kept."""
        self._count()
        name = self.party.name
        if asked.placebo:
            features = features.take(Chance(below.seed, name).rng("placebo").permutation(len(features)))
        return start_secondary(name, features, below, total_steps=asked.total_steps)

    def _count(self) -> None:
        done = self._done()
        if done >= self.most:
            raise PolicyError(
                f"{self.party} takes part in {self.most:,} studies and has seen {done:,}; its owner may raise "
                "max_studies in its [policy]"
            )
        with whole_file(self.path) as part:
            part.write_text(str(done + 1))

    def _done(self) -> int:
        try:
            return int(self.path.read_text()) if self.path.is_file() else 0
        except (OSError, ValueError):
            raise FileError(
                f"{self.path} holds no number of studies; write the one you know of, or remove it"
            ) from None
