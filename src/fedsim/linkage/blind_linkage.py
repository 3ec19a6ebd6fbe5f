"""Linkage by a coordinator that sees no encodings: it deals random masks and opens shuffled rows of masked distances.

A pair's distance is a sum of terms that each party computes alone and of the inner product <a, b> of two vectors.
Everything happens in the integers modulo a power of two. The coordinator deals masks U for the primary's vectors A, V
for the secondary's vectors B, a pad R, and the correction W = U V' - R:

    primary    has U, R; receives B - V           its share:  U (B - V)' + R
    secondary  has V; receives A - U and W        its share:  (A - U) B' + W

The shares add up to A B'. From them, each party computes its share of the distances. Before the coordinator adds these,
both parties shuffle every row with its own permutation and blind it, one by +M and the other by -M, and the primary
shifts each row by a secret number. The coordinator therefore sees, row by row and in a meaningless order, how the
distances of a record differ from each other, but not which candidates they belong to. Row permutations and M come from
a seed that only the two parties know; without M the coordinator, which knows U, could solve for B.

Distances are shifted, never multiplied: the greatest common divisor of the differences would reveal a factor.

Letters: n distinct queries, m distinct candidates, d dimensions, r rows of a tile, t partners found in a tile.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedsim.errors import InputError, SettingError
from fedsim.linkage.private_linkage import (
    LinkageConfig,
    PrivateLinks,
    check_filters,
    distinct_rows,
    pseudonym_order,
    rank_by_similarity,
)
from fedsim.linkage.soft_linkage import fit_scale, similarities, topk
from fedsim.privacy.keyed_prng import (
    BLOCK_KEY_BYTES,
    SECRET_BYTES,
    WORD_DTYPE,
    derive_subkey,
    random_array,
    random_words,
)
from fedsim.privacy.pair_noise import hash_rows, normal_from_words
from fedsim.registry import METRICS
from fedsim.storage.tensor_file import scratch_array
from fedsim.types import POSITION_DTYPE, AnyArray, EncodedTable, Flags, Floats, Integers, Integers32, Scale, Words

TILE_PAIRS = 1 << 21  # pairs whose distances are opened at once: 4 to 16 MB in each message
VECTORS_PER_BLOCK = 4096  # rows of B - V in one message
COLUMNS_PER_PRODUCT = 1024
LIMB_BITS = 16
# The value of a Dice similarity of one; it leaves room for noise. The common ones of two filters can be recovered from
# their similarity as long as the square of their ones is below 2**27, that is with up to 4,096 bits each.
DICE_BITS = 26
FLAT_DICE_SPREAD = 0.1  # used if all Dice distances of a table are equal
MAX_SPREAD_QUERIES = 2000  # records of the secondary that are used to measure the spread of its distances


@dataclass(frozen=True)
class BlindMetric:
    """A metric on secret shares.

    A *value* is what the coordinator opens: the distance (Hamming), its square (position), or 2**26 times the distance
    minus one (Dice), each rounded to an integer. ``tolerance`` bounds how far apart values can be swapped by rounding.
    """

    name: str
    ring: np.dtype[np.unsignedinteger]
    delivered: np.dtype[np.unsignedinteger]  # of a value as the primary receives it, with the fraction of its noise
    tolerance: int = 0

    @property
    def fraction_bits(self) -> int:
        """The number of fraction bits of a delivered value."""
        return 8 * (self.delivered.itemsize - self.ring.itemsize)

    @property
    def by_ones(self) -> bool:
        """Whether both parties must know how many ones the filters have."""
        return self.name == "dice"

    def vectors(self, table: EncodedTable) -> "AnyArray | FilterRows":
        """Return the records as vectors over the ring, (n, d); filters are unpacked only when they are used."""
        if self.name == "position":
            return np.ascontiguousarray(table.bits).view(POSITION_DTYPE).astype(np.int64).astype(self.ring)
        return FilterRows(table, self.ring)

    def share(self, product: AnyArray, squares: AnyArray, ones: Integers | None) -> AnyArray:
        """Convert a share of A B' to a share of the values; ``squares`` are the squared lengths that its holder knows.

        ``ones`` holds the ones of both filters of every pair, for Dice.
        """
        twice = product + product
        if ones is None:
            return np.asarray(squares - twice)
        return np.asarray(-twice * dice_weights(ones).astype(self.ring))

    def distances(self, values: AnyArray, ones: Integers | None, *, noisy: bool) -> AnyArray:
        """Return the distances for signed values; without noise they equal the metric exactly."""
        if ones is not None and not noisy:
            common = np.rint(-values * ones / 2.0 ** (DICE_BITS + 1))
            return np.asarray((ones - 2.0 * common) / np.maximum(ones, 1))
        if self.name == "dice":
            return np.asarray(1.0 + values / 2.0**DICE_BITS)
        if self.name == "position":
            return np.sqrt(np.maximum(values, 0).astype(np.float64))
        return values

    def noise_deviation(self, sigma: float, spread: float) -> float:
        """Return the deviation of the noise on values; ``spread`` is 0 if all distances of a table are equal."""
        return sigma * (spread or (FLAT_DICE_SPREAD * 2.0**DICE_BITS if self.by_ones else 1.0))

    def largest_noise(self, n_bits: int) -> float:
        """Return how far noise may move a value before it wraps around."""
        largest = {"dice": 2.0**DICE_BITS, "position": 2.0**62}.get(self.name, float(n_bits))
        return float(2.0 ** (8 * self.ring.itemsize - 1)) - largest

    def values_of(self, distance: Floats) -> Floats:
        """Convert distances to values."""
        if self.name == "dice":
            return (distance - 1.0) * 2.0**DICE_BITS
        return np.square(distance) if self.name == "position" else np.asarray(distance, dtype=np.float64)


def blind_metric(name: str, n_bits: int) -> BlindMetric:
    """Return a metric on secret shares; raise ``SettingError`` for a metric that has no such form.

    >>> blind_metric("hamming", 1024).ring.name, blind_metric("dice", 1024).tolerance
    ('uint16', 2048)
    """
    limits = {known: METRICS.detail(known, "blind_bits") or 0 for known in METRICS}
    if n_bits > limits.get(name, 0):
        able = ", ".join(f"{known} up to {bits:,} bits" for known, bits in limits.items() if bits)
        message = f"metric {name} over {n_bits:,} bits, but a blind coordinator compares {able}; change the schema"
        raise SettingError(f"{message}, or use a plain coordinator", code="not-blind", setting="metric")
    size = METRICS.detail(name, "blind_bytes")
    ring, delivered = np.dtype(f"<u{size}"), np.dtype(f"<u{min(8, 2 * size)}")
    return BlindMetric(name, ring, delivered, 2 * n_bits if name == "dice" else 0)


@dataclass(frozen=True, eq=False)
class FilterRows:
    """Filters that act as vectors with one number per bit, without using 16 or 32 times the memory."""

    table: EncodedTable
    dtype: np.dtype[np.unsignedinteger]

    @property
    def shape(self) -> tuple[int, int]:
        """Records and bits."""
        return len(self.table), self.table.n_bits

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, part: slice) -> AnyArray:
        return np.unpackbits(self.table.bits[part], axis=1, count=self.table.n_bits).astype(self.dtype)

    @property
    def squares(self) -> AnyArray:
        """The squared lengths: the ones of every filter, (n,)."""
        return np.asarray(np.bitwise_count(self.table.bits).sum(axis=1, dtype=self.dtype))


def dice_weights(ones: Integers) -> Integers:
    """Return 2**26 / ones, rounded; the weight of two empty filters is irrelevant."""
    return np.where(ones > 0, np.rint(2.0**DICE_BITS / np.maximum(ones, 1)), 0).astype(np.int64)


def ring_product(left: AnyArray, right: AnyArray | FilterRows) -> AnyArray:
    """Return left right' modulo the size of the type, (r, d) x (m, d) -> (r, m).

    Long vectors are split into limbs of 16 bits, whose products are exact in float64: with d up to 2**21 no sum exceeds
    2**53. A matrix product is then faster than any integer arithmetic.

    >>> ring_product(np.array([[3, 65535]], np.uint16), np.array([[2, 2]], np.uint16)).tolist()
    [[4]]
    """
    out = np.zeros((len(left), len(right)), left.dtype)
    if left.dtype.itemsize == 8:  # positions have few axes
        right = right[:]
        for axis in range(left.shape[1]):
            out += left[:, axis, None] * right[None, :, axis]
        return out
    heads = _limbs(left)
    for first in range(0, len(right), COLUMNS_PER_PRODUCT):
        tile = slice(first, first + COLUMNS_PER_PRODUCT)
        for high, tail in _limbs(right[tile]):
            for low, head in heads:
                if low + high < 8 * left.dtype.itemsize:
                    out[:, tile] += (head @ tail.T).astype(np.int64).astype(left.dtype) << left.dtype.type(low + high)
    return out


def _limbs(values: AnyArray) -> list[tuple[int, Floats]]:
    """Return the limbs that are not all zero, each with its position."""
    if values.dtype.itemsize == 2:
        return [(0, values.astype(np.float64))]
    low, high = values & 0xFFFF, values >> LIMB_BITS
    return [(place, limb.astype(np.float64)) for place, limb in ((0, low), (LIMB_BITS, high)) if limb.any()]


# The records of both parties


@dataclass(frozen=True, eq=False)
class BlindVectors:
    """Distinct records as vectors, and their squared lengths: the number of ones of a filter."""

    metric: BlindMetric
    rows: AnyArray | FilterRows  # (n, d)

    @cached_property
    def squares(self) -> AnyArray:
        """The squared lengths in the ring, (n,)."""
        if isinstance(self.rows, FilterRows):
            return self.rows.squares
        return np.asarray(np.einsum("nd,nd->n", self.rows, self.rows))  # no second copy of all rows

    @property
    def ones(self) -> Integers32:
        """The number of ones per record that the other party must know, (n,); empty unless the metric is Dice."""
        return self.squares.astype(np.int32) if self.metric.by_ones else np.zeros(0, np.int32)

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class BlindQueries:
    """The primary's distinct records, sorted by keyed names, which reveal only whether a record is requested again."""

    vectors: BlindVectors
    names: Words  # (n,), ascending
    place: Integers  # of every record of the table among the distinct ones


def blind_queries(table: EncodedTable, metric: BlindMetric, secret: bytes, list_name: str) -> BlindQueries:
    """Prepare the primary's records; ``secret`` belongs to the primary."""
    check_filters(table, "primary")
    keyed = hash_rows(table.bits, derive_subkey(secret, f"names of records for {list_name}", SECRET_BYTES))
    names, first, place = np.unique(keyed, return_index=True, return_inverse=True)
    distinct = EncodedTable(table.bits[first], table.n_bits, table.fingerprint)
    return BlindQueries(BlindVectors(metric, metric.vectors(distinct)), names, place.reshape(-1))


@dataclass(frozen=True, eq=False)
class BlindCandidates:
    """The secondary's distinct records in the order of their lowest pseudonyms.

    A pseudonym is a position in the secondary's secret order of its rows. Records with equal encodings form one class,
    so that the coordinator sees no frequencies.
    """

    vectors: BlindVectors
    order: Integers32  # (rows,), the row behind each pseudonym
    members: Integers32  # (rows,), pseudonyms by class
    starts: Integers  # (m + 1,), where the members of each class begin

    def members_of(self, classes: Integers32) -> tuple[Integers32, Integers32]:
        """Return the number of members of each class, and their pseudonyms, class by class."""
        counts = (self.starts[classes + 1] - self.starts[classes]).astype(np.int32)
        parts = [self.members[self.starts[one] : self.starts[one + 1]] for one in classes]
        return counts, np.concatenate(parts) if parts else np.zeros(0, np.int32)


def blind_candidates(table: EncodedTable, metric: BlindMetric, secret: bytes, list_name: str) -> BlindCandidates:
    """Prepare the secondary's records; ``secret`` belongs to the secondary."""
    check_filters(table, "secondary")
    order = pseudonym_order(secret, list_name, table)
    shuffled = EncodedTable(table.bits[order], table.n_bits, table.fingerprint)
    first, class_of = distinct_rows(shuffled.bits)  # (m,), (rows,)
    distinct = EncodedTable(shuffled.bits[first], table.n_bits, table.fingerprint)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(class_of))])
    members = np.argsort(class_of, kind="stable").astype(np.int32)
    return BlindCandidates(BlindVectors(metric, metric.vectors(distinct)), order.astype(np.int32), members, starts)


def measure_spread(table: EncodedTable, metric: BlindMetric, k: int) -> float:
    """Return the standard deviation of the values between records of one table and their K nearest other records.

    The secondary sends it to the coordinator, which scales the noise by it; zero if there is no variation.
    """
    step = -(-len(table) // MAX_SPREAD_QUERIES)
    some = EncodedTable(table.bits[::step], table.n_bits, table.fingerprint)
    _, distance = topk(some, table, metric=metric.name, k=min(k + 1, len(table)))
    values = metric.values_of(distance[:, 1:].astype(np.float64))  # the nearest is the record itself
    return 0.0 if not values.size or values.min() == values.max() else float(values.std())


# Masks. Every seed is used for one table only: a mask that covered two different vectors would reveal their difference.


def tile_rows(n_candidates: int) -> int:
    """Return the number of rows per tile, chosen to bound the size of a tile."""
    return max(1, TILE_PAIRS // n_candidates)


def tiles(n_queries: int, n_candidates: int) -> Iterator[slice]:
    """Yield the tiles of a linkage in order."""
    step = tile_rows(n_candidates)
    return (slice(first, min(first + step, n_queries)) for first in range(0, n_queries, step))


def is_tile(rows: slice, n_queries: int, n_candidates: int) -> bool:
    """Return whether these rows are one of the :func:`tiles`."""
    step = tile_rows(n_candidates)
    first: int = rows.start
    return 0 <= first < n_queries and first % step == 0 and bool(rows.stop == min(first + step, n_queries))


def query_masks(deal: bytes, tile: slice, metric: BlindMetric, dimensions: int) -> AnyArray:
    """Return U for a tile, (r, d), from the seed that the coordinator dealt to the primary."""
    shape = (tile.stop - tile.start, dimensions)
    return random_array(deal, f"masks of rows {tile.start} to {tile.stop}", shape, metric.ring)


def query_pad(deal: bytes, tile: slice, metric: BlindMetric, n_candidates: int) -> AnyArray:
    """Return R for a tile, (r, m), from the same seed."""
    shape = (tile.stop - tile.start, n_candidates)
    return random_array(deal, f"pad of rows {tile.start} to {tile.stop}", shape, metric.ring)


def candidate_masks(deal: bytes, block: slice, metric: BlindMetric, dimensions: int) -> AnyArray:
    """Return V for a block of candidates, from the seed that the coordinator dealt to the secondary."""
    shape = (block.stop - block.start, dimensions)
    return random_array(deal, f"masks of rows {block.start} to {block.stop}", shape, metric.ring)


def all_candidate_masks(
    deal: bytes, n_candidates: int, metric: BlindMetric, dimensions: int, folder: Path | None = None
) -> AnyArray:
    """Return V, (m, d), stored in a file in the folder if it is large and a folder is given."""
    masks = scratch_array((n_candidates, dimensions), metric.ring, folder)
    for block in vector_blocks(n_candidates):
        masks[block] = candidate_masks(deal, block, metric, dimensions)
    return masks


def vector_blocks(n_candidates: int) -> Iterator[slice]:
    """Yield the blocks in which B - V is sent."""
    steps = range(0, n_candidates, VECTORS_PER_BLOCK)
    return (slice(first, min(first + VECTORS_PER_BLOCK, n_candidates)) for first in steps)


def vector_block(first: int, n_candidates: int) -> slice | None:
    """Return the block that starts at a row, or None if there is none."""
    if not 0 <= first < n_candidates or first % VECTORS_PER_BLOCK:
        return None
    return slice(first, min(first + VECTORS_PER_BLOCK, n_candidates))


def column_permutations(seed: bytes, names: Words, n_candidates: int) -> Integers:
    """Return the permutation of every row, (r, m), from a seed that the coordinator does not know.

    It depends on the record, so a record that is linked again is shuffled the same way.
    """
    key = derive_subkey(seed, "columns", BLOCK_KEY_BYTES)
    place_bits = np.uint64(max(1, int(n_candidates - 1).bit_length()))
    mask = (np.uint64(1) << place_bits) - np.uint64(1)
    zeros, places = bytes(8 * n_candidates), np.arange(n_candidates, dtype=np.uint64)
    drawn = np.empty((len(names), n_candidates), np.uint64)
    for row, name in enumerate(names.astype(WORD_DTYPE)):  # a stream of its own: the counter starts at the name
        cipher = Cipher(algorithms.AES(key), modes.CTR(name.tobytes() + bytes(8)))
        drawn[row] = np.frombuffer(cipher.encryptor().update(zeros), WORD_DTYPE)
    # Sorting words that hold the position in their low bits is faster than an argsort of words, and breaks ties.
    drawn = (drawn & ~mask) | places
    drawn.sort(axis=1)
    return (drawn & mask).astype(np.int64)


def row_shifts(secret: bytes, names: Words, metric: BlindMetric) -> AnyArray:
    """Return the secret number by which the primary shifts each row, (r,); ``secret`` belongs to the primary."""
    blocks = np.zeros((len(names), 2), WORD_DTYPE)
    blocks[:, 0] = names
    return random_words(derive_subkey(secret, "shifts of rows", BLOCK_KEY_BYTES), blocks).astype(metric.ring)


# One tile, as each role computes it


@dataclass(frozen=True, eq=False)
class RowSecrets:
    """What the primary and secondary know about a tile but the coordinator does not: row permutations and blinding.

    ``occasion`` identifies the request and the masks dealt for it: with new masks under the same blinding, the
    coordinator could subtract the blinding.
    """

    permutation: Integers  # (r, m)
    blinding: AnyArray  # (r, m)

    @classmethod
    def draw(
        cls, seed: bytes, occasion: str, names: Words, tile: slice, metric: BlindMetric, *, n_candidates: int
    ) -> "RowSecrets":
        """Draw both from the seed that the two parties share; ``names`` are the names of all rows."""
        shape = (tile.stop - tile.start, n_candidates)
        blinding = random_array(seed, f"blinding of rows {tile.start} to {tile.stop}: {occasion}", shape, metric.ring)
        return cls(column_permutations(seed, names[tile], n_candidates), blinding)


def correction(deal: bytes, tile: slice, metric: BlindMetric, masks: AnyArray) -> AnyArray:
    """Return W for a tile, which the coordinator sends to the secondary; ``masks`` is V."""
    pad = query_pad(deal, tile, metric, len(masks))
    return np.asarray(ring_product(query_masks(deal, tile, metric, masks.shape[1]), masks) - pad)


def primary_share(  # noqa: PLR0913, PLR0917
    queries: BlindVectors,
    tile: slice,
    deal: bytes,
    masked: AnyArray,
    ones: Integers32,
    secrets: RowSecrets,
    shifts: AnyArray,
) -> AnyArray:
    """Return the primary's share of a tile's values; ``masked`` is B - V, ``ones`` the candidates' numbers of ones."""
    metric = queries.metric
    product = ring_product(query_masks(deal, tile, metric, masked.shape[1]), masked)
    product += query_pad(deal, tile, metric, len(masked))
    total = _pair_ones(queries.ones[tile], ones) if metric.by_ones else None
    share = metric.share(product, queries.squares[tile, None], total)
    if total is not None:  # two empty filters are equal
        share[total == 0] -= metric.ring.type(1 << DICE_BITS)
    share += shifts[tile, None]
    return np.asarray(np.take_along_axis(share, secrets.permutation, axis=1) + secrets.blinding)


def secondary_product(candidates: BlindVectors, masked: AnyArray) -> AnyArray:
    """Return (A - U) B' for a tile, which does not need the correction yet; ``masked`` is A - U."""
    return ring_product(masked, candidates.rows)


def secondary_share(
    candidates: BlindVectors, product: AnyArray, dealt: AnyArray, ones: Integers32, secrets: RowSecrets
) -> AnyArray:
    """Return the secondary's share; ``dealt`` is W, ``ones`` the numbers of ones of the tile's queries."""
    metric = candidates.metric
    total = _pair_ones(ones, candidates.ones) if metric.by_ones else None
    share = metric.share(product + dealt, candidates.squares[None, :], total)
    return np.asarray(np.take_along_axis(share, secrets.permutation, axis=1) - secrets.blinding)


def _pair_ones(left: Integers32, right: Integers32) -> Integers:
    return left[:, None].astype(np.int64) + right[None, :]


@dataclass(frozen=True, eq=False)
class OpenedTile:
    """What the primary receives for a tile: the number of places per row, the places, and their shifted values."""

    counts: Integers32  # (r,)
    places: Integers32  # (t,)
    values: AnyArray  # (t,)


@dataclass(frozen=True, eq=False)
class BlindNoise:
    """The coordinator's noise on the values it delivers, a fixed function of a record and a place in its row."""

    key: bytes
    deviation: float  # of the values

    def draw(self, names: Words, places: Integers) -> tuple[Floats, Words]:
        """Return the noise of every place, and numbers that break ties between equal values."""
        blocks = np.empty((len(names), 2), WORD_DTYPE)
        blocks[:, 0], blocks[:, 1] = names, places
        words = random_words(self.key, blocks)
        blocks[:, 1] |= np.uint64(1 << 63)
        return self.deviation * normal_from_words(words), random_words(self.key, blocks)


def open_tile(
    metric: BlindMetric, shares: tuple[AnyArray, AnyArray], k: int, names: Words, noise: BlindNoise | None
) -> OpenedTile:
    """Add the shares and return the K nearest places of every row, including all ties with the last one.

    With noise, exactly K are returned, because ties would otherwise reveal which values are equal without noise.
    """
    total = shares[0] + shares[1]
    relative = open_differences(metric, total)
    k = min(k, relative.shape[1])
    last = np.partition(relative, k - 1, axis=1)[:, k - 1]
    rows, places = np.nonzero(relative <= (last + relative.dtype.type(metric.tolerance))[:, None])
    values = total[rows, places].astype(metric.delivered) << metric.delivered.type(metric.fraction_bits)
    if noise is not None:
        drawn, choice = noise.draw(names[rows], places)
        order = np.lexsort((choice, relative[rows, places], rows))
        kept = np.sort(order[_rank_in_row(rows[order]) < k])
        rows, places = rows[kept], places[kept]
        whole = np.rint(drawn[kept] * 2.0**metric.fraction_bits)
        values = values[kept] + _wrap(whole, metric.delivered)
    counts = np.bincount(rows, minlength=len(total)).astype(np.int32)
    return OpenedTile(counts, places.astype(np.int32), values)


def open_differences(metric: BlindMetric, total: AnyArray) -> AnyArray:
    """Return what the sum of both shares reveals: the signed difference of each value from the first one in its row."""
    return (total - total[:, :1]).view(f"<i{metric.ring.itemsize}")


def _wrap(whole: Floats, dtype: np.dtype[np.unsignedinteger]) -> AnyArray:
    """Return rounded numbers modulo the range of a type; huge noise wraps around."""
    limit = 2.0**62
    return np.clip(whole, -limit, limit).astype(np.int64).astype(dtype)


def _rank_in_row(rows: Integers) -> Integers:
    """Return the rank of each entry within its row; entries of a row are consecutive."""
    starts = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1]]))
    lengths = np.diff(np.concatenate([starts, [len(rows)]]))
    return np.arange(len(rows)) - np.repeat(starts, lengths)


# The primary reads what was opened


@dataclass(frozen=True, eq=False)
class NearestClasses:
    """The nearest classes of every distinct query: row, class and distance, by row, distance and class."""

    rows: Integers
    classes: Integers
    distance: AnyArray

    @property
    def distinct(self) -> Integers32:
        """All classes that occur, ascending."""
        return np.unique(self.classes).astype(np.int32)


def read_opened(  # noqa: PLR0913
    metric: BlindMetric,
    opened: OpenedTile,
    permutation: Integers,
    shifts: AnyArray,
    ones: tuple[Integers32, Integers32],
    *,
    first: int,
    noisy: bool,
) -> NearestClasses:
    """Undo the shifts and shuffling of a tile; ``ones`` are the numbers of ones of its queries and of all candidates.

    ``first`` is the first row of the tile; the other arguments belong to the tile only.
    """
    rows = np.repeat(np.arange(len(opened.counts)), opened.counts)
    classes = permutation[rows, opened.places]
    shifted = shifts[rows].astype(metric.delivered) << metric.delivered.type(metric.fraction_bits)
    values = (opened.values - shifted).view(f"<i{metric.delivered.itemsize}").astype(np.int64)
    found: AnyArray = values / 2.0**metric.fraction_bits if noisy else values >> metric.fraction_bits
    total = ones[0][rows].astype(np.int64) + ones[1][classes] if metric.by_ones else None
    return NearestClasses(rows + first, classes, metric.distances(found, total, noisy=noisy))


def nearest_classes(parts: list[NearestClasses], k: int) -> NearestClasses:
    """Join consecutive tiles and cut every row to its K nearest classes, with ties broken by class.

    K classes always contain the K nearest members: a member ranks among them only if the first of its class does.
    """
    rows, classes = (np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "classes"))
    distance = np.concatenate([part.distance for part in parts])
    order = np.lexsort((classes, distance, rows))
    order = order[_rank_in_row(rows[order]) < k]
    return NearestClasses(rows[order], classes[order], distance[order])


def expand_classes(
    found: NearestClasses, counts: Integers32, members: Integers32, k: int
) -> tuple[Integers32, AnyArray]:
    """Replace classes with their members, given for ``found.distinct``; return K pseudonyms and distances, (n, K)."""
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    place = np.searchsorted(found.distinct, found.classes)
    sizes = counts[place]
    entry = np.repeat(np.arange(len(place)), sizes)
    within = np.arange(len(entry)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    pseudonym, rows, distance = members[starts[place[entry]] + within], found.rows[entry], found.distance[entry]
    order = np.lexsort((pseudonym, distance, rows))
    order = order[_rank_in_row(rows[order]) < k].reshape(-1, k)
    return pseudonym[order], distance[order]


def scale_links(
    partner: Integers32, distance: AnyArray, place: Integers, *, counted: Flags | None, scale: Scale | None
) -> tuple[Scale, PrivateLinks]:
    """Return similarities as the plain coordinator scales them, fitted to the ``counted`` records unless given."""
    every = distance[place]  # (records, K)
    if scale is None:
        if counted is None or not counted.any():
            raise InputError("no training record is marked; mark at least one", code="bad-training-mask")
        scale = fit_scale(every[counted])
    similarity = similarities(every, scale).astype(np.float32)
    return scale, rank_by_similarity(partner[place], similarity[:, :, None])


def opened_view(queries: EncodedTable, candidates: EncodedTable, metric: str, secret: bytes = bytes(32)) -> Integers:
    """Return everything that a blind coordinator sees of two encoded tables: the sorted value differences of each row.

    The result has one row per distinct query, in a meaningless order, and one column per distinct candidate. Each row
    is relative to its smallest value, because the coordinator does not know the shift; columns are shuffled row by row,
    so sorting loses no information. The coordinator also knows the names of the records, which are random.

    >>> left, right = (EncodedTable(np.array(rows, np.uint8), 8, "") for rows in ([[1], [3]], [[0], [7], [7]]))
    >>> sorted(opened_view(left, right, "hamming").tolist())
    [[0, 1], [0, 1]]
    """
    chosen = blind_metric(metric, queries.n_bits)
    left, right = (
        blind_queries(queries, chosen, secret, "").vectors,
        blind_candidates(candidates, chosen, secret, "").vectors,
    )
    found = np.sort(open_differences(chosen, _pair_values(left, right, slice(None))), axis=1).astype(np.int64)
    return found - found[:, :1]


def _pair_values(left: BlindVectors, right: BlindVectors, tile: slice) -> AnyArray:
    """Return the values of some rows of ``left`` and all of ``right``, (r, m); no single role can compute them."""
    metric = left.metric
    ones = _pair_ones(left.ones[tile], right.ones) if metric.by_ones else None
    squares = left.squares[tile, None] + right.squares[None, :]
    values = metric.share(ring_product(left.rows[tile], right.rows), squares, ones)
    if ones is not None:
        values[ones == 0] -= metric.ring.type(1 << DICE_BITS)
    return values


class UnmaskedLinks(NamedTuple):
    """The links of a blind linkage, in the order of the primary's records; partners are pseudonyms."""

    order: Integers32  # (m,), the secondary's row behind each pseudonym
    partner: Integers32  # (n, K)
    distance: AnyArray  # (n, K), with noise, as the primary reads it
    exact: AnyArray  # (n, K), which the primary does not know


def link_unmasked(
    queries: EncodedTable, candidates: EncodedTable, linking: LinkageConfig, secret: bytes, list_name: str
) -> UnmaskedLinks:
    """Compute in one process the links that the three roles compute together, with noise but no masks, for an audit."""
    metric, k = blind_metric(linking.metric, queries.n_bits), linking.k
    ours = blind_queries(queries, metric, secret, list_name)
    theirs = blind_candidates(candidates, metric, secret, list_name)
    noise, size = None, len(theirs.vectors)
    if linking.sigma:
        deviation = metric.noise_deviation(linking.sigma, measure_spread(candidates, metric, k))
        noise = BlindNoise(derive_subkey(secret, f"noise of {list_name}", BLOCK_KEY_BYTES), deviation)
    noisy: list[NearestClasses] = []
    exact: list[NearestClasses] = []
    for tile in tiles(len(ours.names), size):
        values = _pair_values(ours.vectors, theirs.vectors, tile)
        opened = open_tile(metric, (values, np.zeros_like(values)), k, ours.names[tile], noise)
        rows = np.repeat(np.arange(len(values)), opened.counts)
        plain = values[rows, opened.places].astype(metric.delivered) << metric.delivered.type(metric.fraction_bits)
        places, shifts = np.broadcast_to(np.arange(size), values.shape), np.zeros(len(values), metric.ring)
        ones = ours.vectors.ones[tile], theirs.vectors.ones
        for read, tile_values, with_noise in ((noisy, opened.values, noise is not None), (exact, plain, False)):
            found = OpenedTile(opened.counts, opened.places, tile_values)
            read.append(read_opened(metric, found, places, shifts, ones, first=tile.start, noisy=with_noise))
    nearest = nearest_classes(noisy, k)
    partner, distance = expand_classes(nearest, *theirs.members_of(nearest.distinct), k)
    class_of = np.empty(len(theirs.order), np.int64)
    class_of[theirs.members] = np.repeat(np.arange(size), np.diff(theirs.starts))
    known = np.concatenate([part.rows * size + part.classes for part in exact])  # ascending
    wanted = np.arange(len(partner))[:, None] * size + class_of[partner]
    plain = np.concatenate([part.distance for part in exact])[np.searchsorted(known, wanted)]
    return UnmaskedLinks(theirs.order, *(array[ours.place] for array in (partner, distance, plain)))


def keyed_digest(secret: bytes, purpose: str, content: bytes) -> str:
    """Return a digest of a table that only the holder of the secret can compute."""
    return blake2b(content, key=derive_subkey(secret, f"digest: {purpose}", SECRET_BYTES), digest_size=16).hexdigest()
