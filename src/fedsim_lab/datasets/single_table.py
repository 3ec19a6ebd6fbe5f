"""One table split into two parties, as in section 6.1 of the paper.

Row i of both parties is the same record, so linkage can be checked and Combine trained. The secondary's identifiers
carry normal noise, in the columns' own units, as in the paper; nothing is scaled.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from fedsim.errors import SettingError
from fedsim_lab.datasets.dataset import SINGLE_TABLE_FILTERS, Dataset, DatasetInfo, LinkSpec, PartyTable, SecondaryTable

K = 100


@dataclass(frozen=True, eq=False)
class SingleTable:
    """A table before it is cut; ``paper_order`` holds its features as the authors shuffled them.

    The first ``identifiers`` columns of an order become identifiers, then half of the rest each party's features.
    """

    about: DatasetInfo
    frame: pl.DataFrame
    label: str
    identifiers: int
    paper_order: tuple[str, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """All columns but the label, in the order of the table."""
        return tuple(name for name in self.frame.columns if name != self.label)

    def cut(self, rng: np.random.Generator, noise: float = 0.0) -> Dataset:
        """Two parties with columns drawn by ``rng``."""
        order = tuple(self.features[place] for place in rng.permutation(len(self.features)))
        return self._cut(order, rng, noise)

    def paper_cut(self, rng: np.random.Generator, noise: float = 0.0) -> Dataset:
        """Two parties with the authors' columns; ``rng`` draws the noise."""
        return self._cut(self.paper_order, rng, noise)

    def cut_at_random_identifiers(self, rng: np.random.Generator, noise: float = 0.0) -> Dataset:
        """Two parties whose identifiers say nothing about anything: standard normal numbers (appendix G, "-random").

        The columns that would have been identifiers are left out.
        """
        drawn = pl.DataFrame({name: rng.normal(size=len(self.frame)) for name in self.paper_order[: self.identifiers]})
        told = self.frame.with_columns(drawn)
        return SingleTable(self.about, told, self.label, self.identifiers, self.paper_order).paper_cut(rng, noise)

    def _cut(self, order: tuple[str, ...], rng: np.random.Generator, noise: float) -> Dataset:
        if not 0.0 <= noise < float("inf"):
            raise SettingError(f"noise={noise}; choose a number of at least 0, in the unit of the identifiers")
        identifiers, rest = order[: self.identifiers], order[self.identifiers :]
        ours, theirs = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        exact = self.frame.select(identifiers).to_numpy()
        noisy = pl.DataFrame(exact + rng.normal(0.0, noise, exact.shape), schema=list(identifiers))
        secondary = self._table(noisy.hstack(self.frame.select(theirs)), theirs, identifiers)
        link = LinkSpec(identifiers, identifiers, "euclidean", K, filters=SINGLE_TABLE_FILTERS)
        return Dataset(
            about=self.about,
            primary=self._table(self.frame.select(*identifiers, *ours, self.label), ours, identifiers),
            label=self.label,
            secondaries=(SecondaryTable("other half", secondary, link),),
        )

    def _table(self, frame: pl.DataFrame, features: tuple[str, ...], identifiers: tuple[str, ...]) -> PartyTable:
        dropped = {name: "the other party's" for name in self.features if name not in (*features, *identifiers)}
        return PartyTable(frame, features, dropped)

    def __repr__(self) -> str:
        return f"SingleTable({self.about.name}: {len(self.frame)} records, {len(self.features)} columns)"
