"""What the coordinator can read off the filters of a secondary, without any key."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from fedsim.attack.finding import Adversary, Finding
from fedsim.attack.frequency import NameList, frequency_attack
from fedsim.attack.graphs import graph_attack, similar_filters, similar_names
from fedsim.attack.order import order_attack
from fedsim.audit.attempt import Attempt
from fedsim.audit.rows import NOTHING, Guarantee
from fedsim.audit.scene import Linkage
from fedsim.audit.settings import Settings
from fedsim.data.columns import number
from fedsim.linkage.encoding import NumericFilter, StringFilter
from fedsim.linkage.encoding.hardening import BitFlip
from fedsim.linkage.encoding.strings import normalise
from fedsim.types import Bits

KNOWN = 10  # records whose numbers the coordinator happens to know
MOST_IN_GRAPH = 300  # the attack costs their cube
NAMED_PER_TARGET = 4  # records named for every target of the slow attacks
MOST_BITS = 4_096  # of long filters every so-manieth byte is looked at: the attack costs their square


def attempts(linkage: Linkage, settings: Settings, rng: np.random.Generator) -> Iterator[Attempt]:
    """Every attack of the coordinator that applies to these filters."""
    schema, table = linkage.terms.encoding, linkage.encoded[1]
    flips = next((step.flip_probability for step in schema.hardening if isinstance(step, BitFlip)), 0.0)
    numeric = [field.column for field in schema.fields if isinstance(field.encoding, NumericFilter)]
    texts = [field for field in schema.fields if isinstance(field.encoding, StringFilter) and field.salt is None]
    if numeric:
        bits = min(table.n_bits, MOST_BITS)
        yield Attempt(
            Adversary.COORDINATOR,
            "order of numeric filters",
            f"the order of {', '.join(numeric)} in the secondary's table",
            lambda: _order(linkage, numeric, flips, rng),
            _flipped(flips),
            memory=16.0 * bits**2 + 6.0 * len(table) * bits,
        )
    if len(texts) == 1 and len(schema.fields) == 1:
        yield from _on_names(linkage, texts[0].column, flips, rng, NAMED_PER_TARGET * settings.targets)


def _on_names(linkage: Linkage, column: str, flips: float, rng: np.random.Generator, most: int) -> Iterator[Attempt]:
    names = _names(linkage, column)
    learns, promised = f"the {column} of a record, with the party's own list as the public one", _flipped(flips)
    rows = np.sort(rng.choice(len(names), min(most, len(names)), replace=False))
    yield Attempt(
        Adversary.COORDINATOR,
        "frequency of string filters",
        learns,
        lambda: _frequency(linkage, [names[row] for row in rows], linkage.encoded[1].bits[rows], flips),
        promised,
        memory=24.0 * len(rows) * len(set(names)),
    )
    yield Attempt(
        Adversary.COORDINATOR,
        "graph matching of filters",
        learns,
        lambda: _graph(linkage, names, rng),
        promised,
        memory=80.0 * MOST_IN_GRAPH**2,
    )


def _order(linkage: Linkage, numeric: list[str], flips: float, rng: np.random.Generator) -> Finding:
    filters, frame = linkage.encoded[1].bits, linkage.scene.secondary
    step = -(-8 * filters.shape[1] // MOST_BITS)
    truth = np.column_stack([number(frame[name], table=linkage.scene.name).to_numpy() for name in numeric])
    known = rng.choice(len(truth), min(KNOWN, len(truth)), replace=False)
    some = np.ascontiguousarray(filters[:, ::step])
    return order_attack(some, truth.astype(np.float64), known, rng=rng, flip_probability=flips)


def _frequency(linkage: Linkage, names: list[str], filters: Bits, flips: float) -> Finding:
    public, truth, count = np.unique(names, return_inverse=True, return_counts=True)
    listed = NameList(public.tolist(), count.astype(np.float64), _code(linkage).grams)
    return frequency_attack(filters, listed, truth.astype(np.int64), flip_probability=flips)


def _graph(linkage: Linkage, names: list[str], rng: np.random.Generator) -> Finding:
    public, first = np.unique(names, return_index=True)
    chosen = rng.choice(len(public), min(MOST_IN_GRAPH, len(public)), replace=False)
    shuffled = rng.permutation(len(chosen))
    encoded = similar_filters(linkage.encoded[1].bits[first[chosen][shuffled]])
    plain = similar_names([str(name) for name in public[chosen]], _code(linkage).grams)
    return graph_attack(encoded, plain, shuffled.astype(np.int64))


def _code(linkage: Linkage) -> StringFilter:
    return next(field.encoding for field in linkage.terms.encoding.fields if isinstance(field.encoding, StringFilter))


def _names(linkage: Linkage, column: str) -> list[str]:
    texts = linkage.scene.secondary[column].cast(pl.String).to_list()
    return [normalise(text) for text in texts] if _code(linkage).normalised else texts


def _flipped(flips: float) -> Guarantee:
    if flips == 0:
        return NOTHING
    return Guarantee(f"none that bounds this attack: each bit is flipped with probability {flips:.3g}")
