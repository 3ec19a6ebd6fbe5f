"""Estimate what a job costs before it runs: traffic, transfer time, disk space and the coordinator's memory.

The traffic of training depends on how many partners the records of a batch share, which is unknown before the linkage.
Two bounds are certain: at least, all records share one list of partners; at most, no two records share any. The
expected value assumes random batches and candidates that are partners equally often. If some candidates are partners
more often than others (hubs), batches have fewer distinct rows than expected.

Letters: n primary records, m candidates, K partners, B records of a batch, U distinct rows, C width of the cut layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedsim.config.job import Job
from fedsim.linkage.direct.encrypted_table import ENTRY_BYTES, SEAL_BYTES, TAG_BYTES, round_up
from fedsim.linkage.direct.oprf import ELEMENT_BYTES, ROUND_TOKENS
from fedsim.registry import WIRE_FORMATS
from fedsim.types import training_length

TRAIN_SHARE, VALIDATION_SHARE, TEST_SHARE = 0.7, 0.1, 0.2  # of the primary's records
FRAME_BYTES = 120  # of a message beside its arrays
ROW_BYTES = 4  # of a row number
DEFAULT_COLUMNS = 20  # features of a party whose table is not available
DEFAULT_RECORDS = 10_000  # records of the parties if no table is available

# Measured with `link_encoded_tables` on one core; other machines may be twice as fast or as slow.
WORDS_PER_SECOND = 5e9  # comparisons of 64 bits of two filters
PAIR_SECONDS = 4e-7  # noise and order of a pair
PAIR_BYTES = 40  # of the coordinator's memory
TOKEN_SECONDS = 1.6e-4  # of both parties, to blind, evaluate, verify and open a token
ENTRY_SECONDS = 5e-5  # to evaluate and encrypt an entry of a table
FILTER_COPIES = 4  # in the coordinator's memory
OPERATIONS_PER_WEIGHT = 6  # a multiplication and an addition, forward and twice as many backward
OPERATIONS_PER_SECOND, STEP_SECONDS = 25e9, 0.015  # of networks on one core, and what every step costs beside them
WEIGHT_BYTES = 16  # a weight, its two moments and its best value so far
CHECKPOINT_COPIES = 3  # two are kept while the next is written


@dataclass(frozen=True)
class PresetSizes:
    """Sizes of a preset, which tests compare with the networks: computing them requires torch.

    ``cut`` is the width of an embedding, ``sent`` that of activations and gradients. ``list_weights`` and
    ``partner_weights`` are weights of one member of the primary's network per list and per partner of a list.
    Without ``epochs`` and ``batch`` the number of training records decides.
    """

    cut: int
    sent: int
    hidden: int
    column_width: int
    list_weights: int
    partner_weights: int
    members: int = 1
    epochs: int | None = None
    batch: int | None = None


PRESET_SIZES = {
    "modern": PresetSizes(
        cut=128, sent=32, hidden=256, column_width=25, list_weights=165_000, partner_weights=2_048, members=8
    ),
    "paper": PresetSizes(
        cut=100,
        sent=100,
        hidden=200,
        epochs=100,
        batch=128,
        column_width=17,
        list_weights=240_000,
        partner_weights=32_000,
    ),
}


@dataclass(frozen=True)
class Span:
    """An expected value with its lower and upper bound.

    >>> Span(1, 2, 4) + 3 * Span(1, 1, 1)
    Span(least=4, expected=5, most=7)
    """

    least: float
    expected: float
    most: float

    def __add__(self, other: Span) -> Span:
        return Span(self.least + other.least, self.expected + other.expected, self.most + other.most)

    def __rmul__(self, factor: float) -> Span:
        return Span(factor * self.least, factor * self.expected, factor * self.most)


ZERO_SPAN, ONE_SPAN = Span(0, 0, 0), Span(1, 1, 1)


@dataclass(frozen=True)
class LinkListSizes:
    """Sizes of the linkage with one secondary; ``asked`` is the number of partners that the method uses."""

    name: str
    records: int
    candidates: int
    k: int
    n_bits: int  # of a filter; 0 without a coordinator
    asked: int
    columns: int = DEFAULT_COLUMNS
    similarities: int = 1  # of a pair
    sent: int = 0  # without a coordinator: tokens that the primary sends
    entries: int = 0  # and entries of the encrypted table
    vector_bytes: int = 0  # and bytes of a row in it

    @property
    def filter_bytes(self) -> int:
        """Bytes of one filter."""
        return -(-self.n_bits // 8)

    def requested_rows(self, records: int) -> Span:
        """Return the number of distinct rows in a request for a number of records."""
        return distinct_rows(records, self.asked, self.candidates)


@dataclass(frozen=True)
class Workload:
    """The sizes of a job; ``assumed`` lists the sizes that are guesses."""

    lists: tuple[LinkListSizes, ...]
    sizes: PresetSizes
    epochs: int
    batch: int
    wire: str
    checkpoint_steps: int
    columns: int = DEFAULT_COLUMNS
    members: int = 1
    sealed: bool = False  # every linked row is sent once, and nothing else
    embedded: bool = False  # every linked row is sent once beside the activations
    assumed: tuple[str, ...] = ()
    bounded: bool = False  # a table whose tokens are not counted has at most so many

    @property
    def records(self) -> int:
        """Records of the primary."""
        return self.lists[0].records

    def row_bytes(self, *, embedded: bool = False) -> int:
        """Return the bytes of the activations, gradients or (``embedded``) embedding of one row."""
        width = self.sizes.cut if embedded or self.sealed else self.sizes.sent
        of_value, of_row = (int(WIRE_FORMATS.detail(self.wire, part)) for part in ("value_bytes", "row_bytes"))
        return width * of_value + of_row

    @property
    def steps(self) -> int:
        """Training steps per epoch."""
        return -(-round(TRAIN_SHARE * self.records) // self.batch)


@dataclass(frozen=True)
class NetworkLink:
    """The network connection between the parties: bandwidth in Mbit/s and round-trip latency in milliseconds."""

    mbit: float = 100.0
    ping_ms: float = 20.0

    def seconds(self, n_bytes: float, round_trips: float) -> float:
        """Return the time for a transfer.

        >>> NetworkLink(mbit=8, ping_ms=10).seconds(2_000_000, round_trips=100)
        3.0
        """
        return n_bytes * 8 / (self.mbit * 1e6) + round_trips * self.ping_ms / 1000


@dataclass(frozen=True)
class CostEstimate:
    """The cost of a job; ``training_seconds`` and ``linkage_line_seconds`` are network time, without computation."""

    steps: int
    epochs: int
    linkage_bytes: int
    filter_bytes: int
    linkage_line_seconds: float
    linkage_seconds: float
    coordinator_memory: int
    distinct: Span
    epoch_bytes: Span
    training_bytes: Span
    training_seconds: Span
    compute_seconds: float
    largest_message: int
    disk: Mapping[str, int]
    assumed: tuple[str, ...]
    bounded: bool


def padded_tokens(count: int) -> int:
    """Return how many tokens are sent to have some evaluated: rounds are padded."""
    return count // ROUND_TOKENS * ROUND_TOKENS + round_up(count % ROUND_TOKENS)


def build_workload(
    job: Job,
    records: Mapping[str, int],
    columns: Mapping[str, int],
    tokens: Mapping[str, Mapping[str, int]] | None = None,
) -> Workload:
    """Return the sizes of a job from the numbers of records and feature columns of each party.

    A party that is missing there is assumed to be as large as the largest one that is given. ``tokens`` are those of
    each party by secondary; where they are missing, no two records of the party are assumed to share any.
    """
    training = job.training
    guess = max(records.values(), default=DEFAULT_RECORDS)
    n_records = {name: records.get(name, guess) for name in (job.primary.name, *job.secondaries)}
    assumed = [f"{count:,} records at {name}" for name, count in n_records.items() if name not in records]
    sizes = PRESET_SIZES.get(training.preset)
    if sizes is None:  # a preset of another package
        sizes = PRESET_SIZES["modern"]
        assumed.append(f"networks of preset {training.preset} as large as those of modern")
    sizes = replace(sizes, hidden=training.width or sizes.hidden)
    counted, bounded = tokens or {}, False

    def tokens_of(party: str, secondary: str, most: int) -> int:
        nonlocal bounded
        found = counted.get(party, {}).get(secondary)
        bounded = bounded or (most > 0 and found is None)
        return padded_tokens(n_records[party] * most) if found is None else found

    most_tokens = {name: (0, 0) if of.tokens is None else of.tokens.most for name, of in job.secondaries.items()}
    lists = tuple(
        LinkListSizes(
            name=name,
            records=n_records[job.primary.name],
            candidates=n_records[name],
            k=terms.k,
            n_bits=0 if terms.filters is None else terms.filters.n_bits,
            asked=1 if training.method == "top1sim" else terms.k,
            columns=columns.get(name, DEFAULT_COLUMNS),
            similarities=terms.n_similarities,
            sent=tokens_of(job.primary.name, name, most_tokens[name][0]),
            entries=tokens_of(name, name, most_tokens[name][1]),
            vector_bytes=4 * sizes.cut + SEAL_BYTES,
        )
        for name, terms in job.secondaries.items()
    )
    length = training_length(round(TRAIN_SHARE * n_records[job.primary.name]))
    return Workload(
        lists=lists,
        sizes=sizes,
        epochs=training.epochs or sizes.epochs or length.epochs,
        batch=training.batch_size or sizes.batch or length.batch,
        wire=training.wire,
        checkpoint_steps=training.checkpoint_steps,
        columns=columns.get(job.primary.name, DEFAULT_COLUMNS),
        members=training.members or sizes.members,
        sealed=job.protection.sealed,
        embedded=job.sends_embedding,
        assumed=tuple(assumed),
        bounded=bounded,
    )


def estimate_cost(job: Job, work: Workload, link: NetworkLink) -> CostEstimate:
    """Estimate the cost of a job on a network connection."""
    linkage, training = sum(map(linkage_bytes, work.lists)), training_bytes(work)
    filters = sum((each.records + each.candidates) * each.filter_bytes for each in work.lists)
    # Lists are linked one after the other, so that only the largest one is in memory.
    pairs = max(partners.records * partners.k for partners in work.lists)
    memory = FILTER_COPIES * filters + PAIR_BYTES * pairs
    trips = round_trips(work)
    seconds = (link.seconds(n_bytes, trips) for n_bytes in (training.least, training.expected, training.most))
    return CostEstimate(
        steps=work.steps,
        epochs=work.epochs,
        linkage_bytes=linkage,
        filter_bytes=filters,
        linkage_line_seconds=link.seconds(linkage, 4),
        linkage_seconds=sum(map(linkage_seconds, work.lists)),
        coordinator_memory=memory,
        distinct=sum((partners.requested_rows(work.batch) for partners in work.lists), ZERO_SPAN),
        epoch_bytes=epoch_bytes(work),
        training_bytes=training,
        training_seconds=Span(*seconds),
        compute_seconds=compute_seconds(work),
        largest_message=_largest_message(work),
        disk=disk_bytes(job, work),
        assumed=work.assumed,
        bounded=work.bounded,
    )


# Linkage


def linkage_bytes(partners: LinkListSizes) -> int:
    """Return the traffic of a linkage: filters to the coordinator; partners, similarities and row order back.

    It is less where records of the primary have equal identifiers: their partners are sent once.

    >>> linkage_bytes(LinkListSizes("rentals", records=4000, candidates=3000, k=20, n_bits=2048, asked=20))
    2448480
    """
    if partners.entries:
        table = partners.entries * (TAG_BYTES + ENTRY_BYTES) + partners.candidates * partners.vector_bytes
        return 2 * ELEMENT_BYTES * partners.sent + table + 4 * FRAME_BYTES
    # Every record of the primary has one byte more: is it used for training?
    up = (partners.records + partners.candidates) * partners.filter_bytes + partners.records
    down = 4 * (1 + partners.similarities) * partners.records * partners.k + ROW_BYTES * partners.candidates
    return up + down + 4 * FRAME_BYTES


def linkage_seconds(partners: LinkListSizes) -> float:
    """Return the rough time for search and noise on one core.

    >>> linkage_seconds(LinkListSizes("rentals", records=100_000, candidates=50_000, k=50, n_bits=1024, asked=50))
    18.0
    """
    if partners.entries:
        return TOKEN_SECONDS * partners.sent + ENTRY_SECONDS * partners.entries
    words = partners.records * partners.candidates * -(-partners.n_bits // 64)
    return words / WORDS_PER_SECOND + PAIR_SECONDS * partners.records * partners.k


# Training


def expected_distinct_rows(records: int, partners: int, candidates: int) -> float:
    """Return the expected number of distinct rows among the partners of random records: m (1 - (1 - K/m)^B).

    Each record has K of m rows, all equally likely, independently of other records. If rows differ in how often they
    are partners, fewer are expected, because 1 - (1 - p)^B is concave in a row's share p.

    >>> round(expected_distinct_rows(records=256, partners=20, candidates=3000))
    2459
    >>> expected_distinct_rows(records=1, partners=20, candidates=3000)
    20.0
    """
    share = min(1.0, partners / candidates)
    return round(candidates * (1 - (1 - share) ** records), 6)


def distinct_rows(records: int, partners: int, candidates: int) -> Span:
    """Return the number of distinct rows, from all records sharing their partners to no two sharing any.

    >>> distinct_rows(records=128, partners=50, candidates=165)
    Span(least=50, expected=165.0, most=165)
    """
    if not records:
        return ZERO_SPAN
    least = min(partners, candidates)
    return Span(least, expected_distinct_rows(records, partners, candidates), min(records * partners, candidates))


def step_bytes(rows: Span, row_bytes: int) -> Span:
    """Return the traffic of a training step: row numbers out, activations in, gradients out.

    >>> step_bytes(Span(20, 100, 200), row_bytes=4 * 128).expected
    103160
    """
    return (ROW_BYTES + 2 * row_bytes) * rows + 3 * FRAME_BYTES * ONE_SPAN


def epoch_bytes(work: Workload) -> Span:
    """Return the traffic of an epoch: all steps, of which the last may be smaller, and the validation."""
    if work.sealed:
        return ZERO_SPAN
    (full, rest), total = divmod(round(TRAIN_SHARE * work.records), work.batch), ZERO_SPAN
    for partners in work.lists:
        batches = [(full, work.batch), (1, rest)] if rest else [(full, work.batch)]
        for count, size in batches:
            total += count * step_bytes(partners.requested_rows(size), work.row_bytes())
        total += _evaluation_bytes(work, partners, VALIDATION_SHARE)
    return total


def training_bytes(work: Workload) -> Span:
    """Return the traffic of all epochs and of the final evaluation on validation and test records."""
    once = sum((_evaluation_bytes(work, each, 1.0, embedded=True) for each in work.lists), ZERO_SPAN)
    if work.sealed:
        return once
    final = [_evaluation_bytes(work, each, share) for each in work.lists for share in (VALIDATION_SHARE, TEST_SHARE)]
    return sum(final, work.epochs * epoch_bytes(work) + (once if work.embedded else ZERO_SPAN))


def _evaluation_bytes(work: Workload, partners: LinkListSizes, share: float, *, embedded: bool = False) -> Span:
    """Return the traffic of an evaluation: row numbers out, activations in; none without a coordinator."""
    if partners.entries:
        return ZERO_SPAN
    rows = partners.requested_rows(round(share * work.records))
    return (ROW_BYTES + work.row_bytes(embedded=embedded)) * rows + 2 * FRAME_BYTES * ONE_SPAN


def round_trips(work: Workload) -> int:
    """Return how often the primary waits for an answer: it asks secondaries in parallel but saves them one by one.

    >>> lists = (LinkListSizes("a", 4000, 3000, 20, 2048, 20),)
    >>> work = Workload(lists, PRESET_SIZES["modern"], epochs=8, batch=256, wire="float32", checkpoint_steps=10)
    >>> work.steps, round_trips(work)
    (11, 122)
    """
    if work.sealed:
        return 2 * len(work.lists) + 10
    saves = (work.steps - 1) // work.checkpoint_steps + 1
    return work.epochs * (work.steps + 1 + saves * len(work.lists)) + 10


def compute_seconds(work: Workload) -> float:
    """Return the rough time of all networks on one core each, for all epochs; the primary waits for the others.

    >>> lists, sizes = (LinkListSizes("a", 6000, 3000, 20, 2048, 20, columns=10),), PRESET_SIZES["modern"]
    >>> work = Workload(lists, sizes, epochs=1, batch=512, wire="float32", checkpoint_steps=10, columns=10, members=8)
    >>> round(compute_seconds(work), 1)  # measured: 2.5
    2.9
    """
    records = round((TRAIN_SHARE + VALIDATION_SHARE / 3) * work.records)  # a validation has no backward pass
    operations = 0.0
    for partners in work.lists:
        rows = partners.requested_rows(work.batch).expected * work.steps
        operations += rows * secondary_weights(work.sizes, partners) * (0 if work.sealed else 1)
    operations = OPERATIONS_PER_WEIGHT * (operations + records * work.members * member_weights(work))
    return work.epochs * (operations / OPERATIONS_PER_SECOND + work.steps * STEP_SECONDS)


def member_weights(work: Workload) -> int:
    """Return the number of weights of one member of the primary's network."""
    lists = sum(work.sizes.list_weights + each.asked * work.sizes.partner_weights for each in work.lists)
    return work.columns * work.sizes.column_width * work.sizes.hidden + lists


def secondary_weights(sizes: PresetSizes, partners: LinkListSizes) -> int:
    """Return the number of weights of a secondary's network."""
    return (partners.columns * sizes.column_width + sizes.sent) * sizes.hidden


# Storage


def disk_bytes(job: Job, work: Workload) -> dict[str, int]:
    """Return the disk space that each party needs, by name."""
    need = dict.fromkeys((party.name for party in job.parties), 0)
    for partners in work.lists:
        links = 8 * partners.records * partners.k
        filters = partners.filter_bytes
        candidates = partners.candidates * (filters + ROW_BYTES)
        need[job.hub.name] += links + candidates
        need[job.primary.name] += links + partners.records * filters
        weights = secondary_weights(work.sizes, partners)
        need[partners.name] += candidates + CHECKPOINT_COPIES * WEIGHT_BYTES * weights
    need[job.primary.name] += CHECKPOINT_COPIES * WEIGHT_BYTES * work.members * member_weights(work)
    return need


def _largest_message(work: Workload) -> int:
    """Return the size of the largest message: filters of a party, a list of partners, or activations of a request."""
    sizes: list[float] = []
    for partners in work.lists:
        rows = max(partners.requested_rows(size).most for size in (round(TEST_SHARE * work.records), work.batch))
        sizes += [
            partners.filter_bytes * max(partners.records, partners.candidates),
            8 * partners.records * partners.k,
            rows * work.row_bytes(),
        ]
    return int(max(sizes)) + FRAME_BYTES
