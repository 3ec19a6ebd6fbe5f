"""Estimate what a job costs before it runs: bytes, time on the network, disk and the coordinator's memory.

How much training sends depends on how many partners the records of a batch share, which nobody knows before the
linkage. Two numbers are certain: at least all records share one list of partners, at most no two share any. Between
them stands what one expects of a batch drawn at random if every candidate is a partner as often as any other. Hubs
only make it less: where some rows are asked for more often than others, fewer are distinct.

Letters: n primary records, m candidates, K partners, B records of a batch, U distinct rows, C width of the cut layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedsim.config.job import Job

TRAIN_SHARE, VALIDATION_SHARE, TEST_SHARE = 0.7, 0.1, 0.2  # of the primary's records, as the split draws them
VALUE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
FRAME_BYTES = 120  # bytes of a message beside its arrays
ROW_BYTES = 4  # bytes of a row number
DEFAULT_COLUMNS = 20  # features of a party whose table is not at hand
DEFAULT_RECORDS = 10_000  # of a party whose table is not at hand, where none is

# Measured with `link_blind` on one core; another machine may be twice as fast or as slow.
WORDS_PER_SECOND = 5e9  # 64 bits of two filters compared
PAIR_SECONDS = 4e-7  # of noise and order
PAIR_BYTES = 40  # of the coordinator's memory
FILTER_COPIES = 4  # of the filters in the coordinator's memory
WEIGHT_BYTES = 16  # a weight, its two moments and its best value so far
CHECKPOINT_COPIES = 3  # two are kept, one is being written


@dataclass(frozen=True)
class PresetSizes:
    """What a preset says of sizes; tests hold it against the networks, which need torch to be asked.

    ``list_weights`` and ``partner_weights`` are those of the primary's network for each list and for each of its K.
    """

    cut: int
    hidden: int
    epochs: int
    batch: int
    column_width: int
    list_weights: int
    partner_weights: int


PRESET_SIZES = {
    "modern": PresetSizes(
        cut=128, hidden=256, epochs=60, batch=512, column_width=25, list_weights=520_000, partner_weights=51_200
    ),
    "paper": PresetSizes(
        cut=100, hidden=200, epochs=100, batch=128, column_width=17, list_weights=240_000, partner_weights=32_000
    ),
}


@dataclass(frozen=True)
class Span:
    """A number with the two bounds it cannot leave.

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

    def __mul__(self, factor: float) -> Span:
        return factor * self


ZERO_SPAN = Span(0, 0, 0)


@dataclass(frozen=True)
class LinkListSizes:
    """One secondary's list: how many records on both sides, how they are linked, how many features it has."""

    name: str
    records: int
    candidates: int
    k: int
    n_bits: int
    asked: int  # partners that the method asks for
    columns: int = DEFAULT_COLUMNS

    @property
    def filter_bytes(self) -> int:
        """Of one record."""
        return -(-self.n_bits // 8)


@dataclass(frozen=True)
class Workload:
    """What is to be done; ``assumed`` are the parties whose number of records is a guess."""

    lists: tuple[LinkListSizes, ...]
    sizes: PresetSizes
    epochs: int
    batch: int
    value_bytes: int
    checkpoint_steps: int
    columns: int = DEFAULT_COLUMNS
    assumed: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        """Of the primary."""
        return self.lists[0].records

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return -(-round(TRAIN_SHARE * self.records) // self.batch)


@dataclass(frozen=True)
class NetworkLink:
    """The line between the parties: its speed, and how long a word and its answer take."""

    mbit: float = 100.0
    ping_ms: float = 20.0

    def seconds(self, n_bytes: float, round_trips: float) -> float:
        """How long so much takes.

        >>> NetworkLink(mbit=8, ping_ms=10).seconds(2_000_000, round_trips=100)
        3.0
        """
        return n_bytes * 8 / (self.mbit * 1e6) + round_trips * self.ping_ms / 1000


@dataclass(frozen=True)
class CostEstimate:
    """What a job costs; bytes and seconds are those of the line, computing comes on top."""

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
    largest_message: int
    disk: Mapping[str, int]
    assumed: tuple[str, ...]


def expected_distinct_rows(records: int, partners: int, candidates: int) -> float:
    """Distinct rows among the partners of so many records drawn at random: m (1 - (1 - K/m)^B).

    Each record asks for K of m rows, all equally likely, whatever the others ask for. Where rows differ in how often
    they are partners, fewer are expected: 1 - (1 - p)^B is concave in a row's share p.

    >>> round(expected_distinct_rows(records=256, partners=20, candidates=3000))
    2459
    >>> expected_distinct_rows(records=1, partners=20, candidates=3000)
    20.0
    """
    share = min(1.0, partners / candidates)
    return round(candidates * (1 - (1 - share) ** records), 6)


def distinct_rows(records: int, partners: int, candidates: int) -> Span:
    """Between all records sharing their partners and no two sharing any.

    >>> distinct_rows(records=128, partners=50, candidates=165)
    Span(least=50, expected=165.0, most=165)
    """
    if not records:
        return ZERO_SPAN
    least = min(partners, candidates)
    return Span(least, expected_distinct_rows(records, partners, candidates), min(records * partners, candidates))


def linkage_bytes(partners: LinkListSizes) -> int:
    """Filters of both sides to the coordinator; partners, similarities and the secret order back.

    >>> linkage_bytes(LinkListSizes("rentals", records=4000, candidates=3000, k=20, n_bits=2048, asked=20))
    2448480
    """
    up = filter_bytes(partners) + partners.records  # one byte more for each record: does it train?
    down = 8 * partners.records * partners.k + ROW_BYTES * partners.candidates
    return up + down + 4 * FRAME_BYTES


def filter_bytes(partners: LinkListSizes) -> int:
    """Filters of both sides."""
    return (partners.records + partners.candidates) * partners.filter_bytes


def step_bytes(rows: Span, cut: int, value_bytes: int) -> Span:
    """One training step: rows out, activations in, gradients out.

    >>> step_bytes(Span(20, 100, 200), cut=128, value_bytes=4).expected
    103160
    """
    return (ROW_BYTES + 2 * cut * value_bytes) * rows + Span(3 * FRAME_BYTES, 3 * FRAME_BYTES, 3 * FRAME_BYTES)


def answer_bytes(rows: Span, cut: int, value_bytes: int) -> Span:
    """One evaluation: rows out, activations in."""
    return (ROW_BYTES + cut * value_bytes) * rows + Span(2 * FRAME_BYTES, 2 * FRAME_BYTES, 2 * FRAME_BYTES)


def epoch_bytes(work: Workload) -> Span:
    """All steps of an epoch, the last of which may be smaller, and the validation after it."""
    train, total = round(TRAIN_SHARE * work.records), ZERO_SPAN
    for partners in work.lists:
        whole = step_bytes(_requested_rows(partners, min(work.batch, train)), work.sizes.cut, work.value_bytes)
        rest = step_bytes(_requested_rows(partners, train % work.batch), work.sizes.cut, work.value_bytes)
        steps = (train // work.batch) * whole + (rest if train % work.batch else ZERO_SPAN)
        total = total + steps + _evaluation_bytes(work, partners, VALIDATION_SHARE)
    return total


def training_bytes(work: Workload) -> Span:
    """All epochs, and the validation and test records once more at the end."""
    last = [
        _evaluation_bytes(work, partners, part) for partners in work.lists for part in (VALIDATION_SHARE, TEST_SHARE)
    ]
    return sum(last, work.epochs * epoch_bytes(work))


def round_trips(work: Workload) -> int:
    """Times that the primary waits for an answer; the secondaries are asked side by side, but save in turn.

    >>> job = Workload((LinkListSizes("a", 4000, 3000, 20, 2048, 20),), PRESET_SIZES["modern"], 8, 256, 4, checkpoint_steps=10)
    >>> job.steps, round_trips(job)
    (11, 122)
    """
    saves = (work.steps - 1) // work.checkpoint_steps + 1
    return work.epochs * (work.steps + 1 + saves * len(work.lists)) + 10


def coordinator_memory(work: Workload) -> int:
    """The filters of both sides with their copies, and the pairs; lists are linked one after the other."""
    filters = sum(filter_bytes(partners) for partners in work.lists)
    return FILTER_COPIES * filters + max(PAIR_BYTES * partners.records * partners.k for partners in work.lists)


def linkage_seconds(partners: LinkListSizes) -> float:
    """The search and the noise on one core; roughly, for every machine is another.

    >>> linkage_seconds(LinkListSizes("rentals", records=100_000, candidates=50_000, k=50, n_bits=1024, asked=50))
    18.0
    """
    words = partners.records * partners.candidates * -(-partners.n_bits // 64)
    return words / WORDS_PER_SECOND + PAIR_SECONDS * partners.records * partners.k


def disk_bytes(job: Job, work: Workload) -> dict[str, int]:
    """Bytes in the folder of every party, by its name."""
    need = dict.fromkeys((party.name for party in job.parties), 0)
    sizes, above = work.sizes, work.columns * work.sizes.column_width * work.sizes.hidden
    for partners in work.lists:
        lists = 8 * partners.records * partners.k
        candidates = partners.candidates * (partners.filter_bytes + ROW_BYTES)
        above += sizes.list_weights + partners.asked * sizes.partner_weights
        below = (partners.columns * sizes.column_width + sizes.cut) * sizes.hidden
        need[job.coordinator.name] += lists + candidates
        need[job.primary.name] += lists + partners.records * partners.filter_bytes
        need[partners.name] += candidates + CHECKPOINT_COPIES * WEIGHT_BYTES * below
    need[job.primary.name] += CHECKPOINT_COPIES * WEIGHT_BYTES * above
    return need


def largest_message(work: Workload) -> int:
    """The filters of one side, a whole list of partners, or the cut layer of all rows of an evaluation."""
    most = []
    for partners in work.lists:
        rows = max(
            _requested_rows(partners, round(TEST_SHARE * work.records)).most, _requested_rows(partners, work.batch).most
        )
        most += [
            partners.filter_bytes * max(partners.records, partners.candidates),
            8 * partners.records * partners.k,
            rows * work.sizes.cut * work.value_bytes,
        ]
    return int(max(most)) + FRAME_BYTES


def estimate_cost(job: Job, work: Workload, link: NetworkLink) -> CostEstimate:
    """Everything at once."""
    linkage, training = sum(map(linkage_bytes, work.lists)), training_bytes(work)
    trips = round_trips(work)
    seconds = (link.seconds(n_bytes, trips) for n_bytes in (training.least, training.expected, training.most))
    return CostEstimate(
        steps=work.steps,
        epochs=work.epochs,
        linkage_bytes=linkage,
        filter_bytes=sum(map(filter_bytes, work.lists)),
        linkage_line_seconds=link.seconds(linkage, 4),
        linkage_seconds=sum(map(linkage_seconds, work.lists)),
        coordinator_memory=coordinator_memory(work),
        distinct=sum((_requested_rows(partners, work.batch) for partners in work.lists), ZERO_SPAN),
        epoch_bytes=epoch_bytes(work),
        training_bytes=training,
        training_seconds=Span(*seconds),
        largest_message=largest_message(work),
        disk=disk_bytes(job, work),
        assumed=work.assumed,
    )


def build_workload(job: Job, records: Mapping[str, int], columns: Mapping[str, int]) -> Workload:
    """The work of a job for parties with so many records and features, by name; who is missing there is assumed.

    A party whose table is not at hand counts as large as the largest that is.
    """
    guess, training, sizes = (
        max(records.values(), default=DEFAULT_RECORDS),
        job.training,
        PRESET_SIZES[job.training.preset],
    )
    of_primary = records.get(job.primary.name, guess)
    lists = tuple(
        LinkListSizes(
            name=name,
            records=of_primary,
            candidates=records.get(name, guess),
            k=terms.k,
            n_bits=terms.encoding.n_bits,
            asked=1 if training.method == "top1sim" else terms.k,
            columns=columns.get(name, DEFAULT_COLUMNS),
        )
        for name, terms in job.secondaries.items()
    )
    return Workload(
        lists=lists,
        sizes=sizes,
        epochs=training.epochs or sizes.epochs,
        batch=training.batch_size or sizes.batch,
        value_bytes=VALUE_BYTES[training.wire],
        checkpoint_steps=training.checkpoint_steps,
        columns=columns.get(job.primary.name, DEFAULT_COLUMNS),
        assumed=tuple(
            f"{found:,} records at {name}"
            for name, found in ((job.primary.name, of_primary), *((each.name, each.candidates) for each in lists))
            if name not in records
        ),
    )


def _requested_rows(partners: LinkListSizes, records: int) -> Span:
    return distinct_rows(records, partners.asked, partners.candidates)


def _evaluation_bytes(work: Workload, partners: LinkListSizes, share: float) -> Span:
    rows = _requested_rows(partners, round(share * work.records))
    return answer_bytes(rows, work.sizes.cut, work.value_bytes)
