"""Bounds of every message: the smallest and largest number, length of a text and size of a dimension.

A few bytes can declare an array of 10^8 rows without columns, or a cut layer of 3,000,000 numbers, and a process
that handles them runs out of memory. A session therefore checks every message before it is handled. The bounds below
hold for any job; :meth:`MessageBounds.for_lists` narrows them to what a job's lists imply.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from fedsim.errors import WireError
from fedsim.linkage.direct.oprf import ELEMENT_BYTES, MAX_BATCH, PROOF_BYTES, ROUND_TOKENS
from fedsim.protocol.messages import KINDS, Message
from fedsim.protocol.transport import LAYOUTS, MAX_DIMENSION, MAX_FRAME_BYTES, SEAL_KEY_BYTES

Range = tuple[int, int]

MAX_WIDTH = 1 << 14  # of the cut layer
MAX_STEPS = 1 << 40
MAX_INTEGER = (1 << 63) - 1
MAX_TABLE_BYTES = 1 << 40
PART_BYTES = 4 << 20  # of an encrypted table in one message
_NAME: Range = (0, 40)
_DIGEST: Range = (0, 128)
_TEXT: Range = (0, 1 << 14)  # a sentence for people
_ANY: Range = (-MAX_INTEGER - 1, MAX_INTEGER)

# By name of a fact or letter of a dimension; "kind.name" where one kind of message differs from the others. Numbers
# are bounded by the job only.
GENERAL_LIMITS: Mapping[str, Range] = {
    **dict.fromkeys(("party", "role", "partner_list"), _NAME),
    **dict.fromkeys(("digest", "have", "fingerprint", "instance", "session", "resume"), _DIGEST),
    **dict.fromkeys(("origin", "reason", "text", "fault"), _TEXT),
    "job": (0, 1 << 20),
    "statement": (0, 4096),
    "certificate": (0, 1 << 14),
    "versions": (0, 2048),
    **dict.fromkeys(("received", "seed", "step", "total_steps", "n_bits", "width"), _ANY),
    **dict.fromkeys(("n_records", "n_candidates", "n_trained"), _ANY),
    **dict.fromkeys(("n", "m", "U"), (0, MAX_DIMENSION)),
    "C": (0, MAX_WIDTH),
    "b": (0, MAX_FRAME_BYTES),
    "K": (0, 10_000),
    "F": (0, 1000),
    "s": (0, MAX_FRAME_BYTES),
    "row-order.s": (0, SEAL_KEY_BYTES),
    **dict.fromkeys(("size", "start"), (0, MAX_TABLE_BYTES)),
    "t": (0, PART_BYTES),
    "T": (1, ROUND_TOKENS),
    "e": (ELEMENT_BYTES, ELEMENT_BYTES),
    "B": (1, -(-ROUND_TOKENS // MAX_BATCH)),
    "z": (PROOF_BYTES, PROOF_BYTES),
}
UNBOUNDED_SLOTS = ("flag", "number")  # a number is finite, and none is used as a size


@dataclass(frozen=True)
class ListSizes:
    """What the job says about one list: bits of a filter, partners per record, similarities per pair."""

    n_bits: int
    k: int
    n_fields: int = 1

    @property
    def most_queries(self) -> int:
        """The primary's records whose filters, and whose partners, fit into one message."""
        links = self.k * (4 + 4 * self.n_fields)
        return MAX_FRAME_BYTES // max(-(-self.n_bits // 8), links)

    @property
    def most_rows(self) -> int:
        """The rows of the secondary whose filters fit into one message."""
        return MAX_FRAME_BYTES // -(-self.n_bits // 8)


@dataclass(frozen=True)
class MessageBounds:
    """The bounds of all messages in one session."""

    limits: Mapping[str, Range] = field(default_factory=lambda: GENERAL_LIMITS)
    _tables: Mapping[str, Mapping[str, Range]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tables", {kind: self.table(kind) for kind in KINDS})

    @classmethod
    def for_lists(cls, lists: Sequence[ListSizes], cut_width: int | None = None) -> Self:
        """Return the bounds that the lists of a job imply, and the width of its secondaries' cut layer if it is known.

        An embedding has a width of its own, so activations may be wider.
        """
        queries = max(each.most_queries for each in lists)
        rows = max(each.most_rows for each in lists)
        bits, k = [each.n_bits for each in lists], [each.k for each in lists]
        fields = [each.n_fields for each in lists]
        own = {
            "n_bits": (min(bits), max(bits)),
            "b": (-(-min(bits) // 8), -(-max(bits) // 8)),
            **dict.fromkeys(("n", "n_trained"), (1, queries)),
            **dict.fromkeys(("width", "C"), (1, MAX_WIDTH)),
            "ready.width": (1, MAX_WIDTH) if cut_width is None else (cut_width, cut_width),
            **dict.fromkeys(("step", "total_steps"), (-1, MAX_STEPS)),
            "received": (0, MAX_STEPS),
            "seed": (0, MAX_INTEGER),
            **dict.fromkeys(("m", "n_records", "n_candidates"), (1, rows)),
            "U": (0, rows),
            "K": (min(k), max(k)),
            "F": (min(fields), max(fields)),
        }
        return cls({**GENERAL_LIMITS, **own})

    @classmethod
    def for_tables(cls) -> Self:
        """Return the bounds of a job without a coordinator, whose messages do not depend on its terms."""
        sizes = {"width": (1, MAX_WIDTH), "n_records": (1, MAX_DIMENSION), "received": (0, MAX_STEPS)}
        return cls({**GENERAL_LIMITS, **sizes})

    def table(self, kind: str) -> dict[str, Range]:
        """Return the bounds of one kind of message, by name of a fact or letter of a dimension."""
        layout = LAYOUTS[kind]
        names = [name for name, slot in layout.facts.items() if slot not in UNBOUNDED_SLOTS]
        letters = [letter for shape in layout.arrays.values() for letter in shape.letters]
        return {name: self.limits.get(f"{kind}.{name}") or self.limits[name] for name in (*names, *letters)}

    def check(self, message: Message) -> None:
        """Raise ``WireError`` for a message outside its bounds."""
        kind, layout = message.kind, LAYOUTS[message.kind]
        seen: dict[str, int] = {}
        for name in layout.facts:
            value = getattr(message, name)
            seen[name] = len(value) if isinstance(value, str) else value
        for name, shape in layout.arrays.items():
            seen |= dict(zip(shape.letters, getattr(message, name).shape, strict=True))
        for name, (least, most) in self._tables[kind].items():
            if not least <= seen[name] <= most:
                fault = f"'{name}' of message '{kind}' is or has the length {seen[name]}"
                rule = f"it must be between {least} and {most} in this job"
                raise WireError(f"{fault}; {rule}", code="out-of-bounds", sent=kind, name=name, limit=most)


GENERAL_BOUNDS = MessageBounds()
