"""Everything that may leave an organisation: the parties, one class per message, and the ledger that counts messages.

Each message class names the pairs of roles that may exchange it. A message carries plain facts (integers, floats,
text, flags) and arrays with a fixed type and number of dimensions; nothing else can be encoded. Letters: n primary
records, m secondary records, K partners, U distinct rows, C width of the cut layer, b bytes of a filter, s sealed
bytes, T tokens of e bytes, B batches with proofs of z bytes, t bytes of a table. Arrays of one message agree in the
letters they share.
"""

import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, dataclass_transform

from numpy.typing import NDArray

from fedsim.errors import SettingError, replace_unprintable
from fedsim.registry import WIRE_FORMATS

PARTY_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


class Role(StrEnum):
    """What a party does in a job; a certificate is valid for one role only."""

    PRIMARY = "primary"
    SECONDARY = "secondary"
    COORDINATOR = "coordinator"
    RELAY = "relay"  # takes no part in a job: it connects parties that accept no connections


@dataclass(frozen=True)
class Party:
    """A role and a name, as proven by a certificate.

    >>> str(Party(Role.SECONDARY, "rentals"))
    "secondary 'rentals'"
    """

    role: Role
    name: str

    def __post_init__(self) -> None:
        if not PARTY_NAME.fullmatch(self.name):
            fault = f"invalid party name '{self.name[:60]}'; use up to 40 lowercase letters, digits and '-'"
            raise SettingError(fault, code="invalid-party-name")

    def __str__(self) -> str:
        return f"{self.role} '{self.name}'"


MAX_PEER_TEXT = 2000  # characters of a peer's text that are shown


def safe_peer_text(text: str) -> str:
    """Return text from a peer as one printable line, safe for logs, terminals and other peers.

    >>> safe_peer_text("disk full\\x1b[2J\\n")
    'disk full?[2J '
    """
    return replace_unprintable(text[:MAX_PEER_TEXT])


PROTOCOL = 4  # increase whenever a message changes
OUTSIDE_TRAINING = -1  # the step of activations that no gradients follow
UNLINKED = -1  # the row behind a pseudonym that no record of the primary is linked to

P, S, C = Role.PRIMARY, Role.SECONDARY, Role.COORDINATOR
Route = tuple[Role, Role]
EVERYONE: tuple[Route, ...] = ((P, C), (C, P), (S, C), (C, S), (S, P), (P, S))
REALS = tuple(dict.fromkeys(WIRE_FORMATS.detail(name, "dtype") for name in WIRE_FORMATS))


class Phase(StrEnum):
    """The phases of a job, in order."""

    JOIN = "join"
    LINK = "link"
    TRAIN = "train"
    PREDICT = "predict"
    END = "end"


@dataclass(frozen=True)
class Shape:
    """Allowed types of an array in a message, and one letter per dimension."""

    dtypes: tuple[str, ...]
    letters: str


@dataclass_transform(frozen_default=True, eq_default=False)
class Message:
    """Base class of all messages, which are frozen dataclasses; ``routes`` lists allowed pairs (sender, receiver)."""

    kind: ClassVar[str] = "message"
    phase: ClassVar[Phase]
    routes: ClassVar[tuple[Route, ...]]

    def __init_subclass__(cls, *, kind: str, phase: Phase, routes: tuple[Route, ...]) -> None:
        dataclass(frozen=True, eq=False, repr=False)(cls)
        cls.kind, cls.phase, cls.routes = kind, phase, routes

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # the content must not reach a log


class Hello(Message, kind="hello", phase=Phase.JOIN, routes=EVERYONE):
    """First message on every connection: the caller, its job, and how far an interrupted session got."""

    party: str
    role: str
    job: str  # the job file as JSON, equal at all parties
    versions: str  # software versions as JSON
    instance: str  # random, drawn when the process starts
    resume: str  # the session to resume, or empty
    received: int
    clock: float


class Welcome(Message, kind="welcome", phase=Phase.JOIN, routes=EVERYONE):
    """Accepts a Hello; a session other than the requested one is new."""

    session: str
    received: int
    versions: str
    clock: float


class Refusal(Message, kind="refusal", phase=Phase.JOIN, routes=EVERYONE):
    """Rejects a Hello. ``passing``: it may be accepted later."""

    reason: str
    passing: bool


class Trouble(Message, kind="trouble", phase=Phase.END, routes=EVERYONE):
    """The sender stops; ``origin`` is the party that failed first. The reason contains no data."""

    origin: str
    reason: str
    passing: bool  # the job itself is fine; a party was unreachable or was stopped by its owner


class Farewell(Message, kind="farewell", phase=Phase.END, routes=EVERYONE):
    """The job is done; the receiver may exit."""


class Notice(Message, kind="notice", phase=Phase.JOIN, routes=EVERYONE):
    """Explains why a reply is delayed."""

    text: str


class Offer(Message, kind="offer", phase=Phase.LINK, routes=((P, C), (S, C))):
    """Announces encoded identifiers by digest; ``have`` is the digest of the last answer received."""

    partner_list: str
    digest: str
    have: str


class Want(Message, kind="want", phase=Phase.LINK, routes=((C, P), (C, S))):
    """Whether the offered identifiers must be sent."""

    wanted: bool


class Candidates(Message, kind="candidates", phase=Phase.LINK, routes=((S, C),)):
    """Encoded identifiers of a secondary."""

    partner_list: str
    fingerprint: str
    n_bits: int
    bits: Annotated[NDArray[Any], Shape(("uint8",), "mb")]


class Queries(Message, kind="queries", phase=Phase.LINK, routes=((P, C),)):
    """Encoded identifiers of the primary; ``counted`` marks the training records, which determine the scale."""

    partner_list: str
    fingerprint: str
    n_bits: int
    bits: Annotated[NDArray[Any], Shape(("uint8",), "nb")]
    counted: Annotated[NDArray[Any], Shape(("uint8",), "n")]


class Partners(Message, kind="partners", phase=Phase.LINK, routes=((C, P),)):
    """The partners of primary records as pseudonymous row numbers, with noisy similarities.

    Records of training with equal encodings have equal partners, which are sent once, in the order of the first of
    them.
    """

    # Neither the scale nor the noise chosen for a tau: both together would turn similarities back into distances.

    partner_list: str
    n_candidates: int
    partner: Annotated[NDArray[Any], Shape(("int32",), "nK")]
    similarity: Annotated[NDArray[Any], Shape(("float32",), "nKF")]
    sealed: Annotated[NDArray[Any], Shape(("uint8",), "s")]  # the same for the secondary, of new records


class RowOrder(Message, kind="row-order", phase=Phase.LINK, routes=((C, S),)):
    """The row of the secondary behind each pseudonym; the primary never sees it.

    A row that no record of the primary is linked to is left out: its pseudonym stands for -1.
    """

    partner_list: str
    n_trained: int  # training records of the primary, which bound the number of steps; all under sealed labels
    order: Annotated[NDArray[Any], Shape(("int32",), "m")]
    seal: Annotated[NDArray[Any], Shape(("uint8",), "s")]  # key of the links of new records, sealed later


class Unchanged(Message, kind="unchanged", phase=Phase.LINK, routes=((C, P), (C, S))):
    """The last answer is still valid."""


class FetchTable(Message, kind="fetch-table", phase=Phase.LINK, routes=((P, S),)):
    """Requests a secondary's encrypted table from this byte on; ``have`` is the digest of the table received."""

    have: str
    start: int


class TablePart(Message, kind="table-part", phase=Phase.LINK, routes=((S, P),)):
    """Bytes of the encrypted table, whose digest and size it states; none if the receiver has that table."""

    digest: str
    size: int
    start: int
    content: Annotated[NDArray[Any], Shape(("uint8",), "t")]


class Evaluate(Message, kind="evaluate", phase=Phase.LINK, routes=((P, S),)):
    """Requests the evaluation of blinded tokens: random elements, sorted, a round number of them."""

    blinded: Annotated[NDArray[Any], Shape(("uint8",), "Te")]


class Evaluated(Message, kind="evaluated", phase=Phase.LINK, routes=((S, P),)):
    """The same elements evaluated with the key of the table, and a proof per batch that they were."""

    elements: Annotated[NDArray[Any], Shape(("uint8",), "Te")]
    proofs: Annotated[NDArray[Any], Shape(("uint8",), "Bz")]


class Meet(Message, kind="meet", phase=Phase.JOIN, routes=((P, S),)):
    """First request to a secondary: how wide is your cut layer? ``predicting``: load the saved model."""

    predicting: bool


class Begin(Message, kind="begin", phase=Phase.TRAIN, routes=((P, S),)):
    """Start training from fresh random weights, for this many steps; without ``study`` with the seed of the job."""

    total_steps: int
    study: bool = False  # a comparison run with its own seed; nothing of it is saved
    seed: int = 0
    placebo: bool = False  # the secondary shuffles its feature rows first


class Ready(Message, kind="ready", phase=Phase.JOIN, routes=((S, P),)):
    """The width of the cut layer and the number of records."""

    width: int
    n_records: int


class Ask(Message, kind="ask", phase=Phase.TRAIN, routes=((P, S),)):
    """Requests the cut layer of these distinct rows for a training step."""

    step: int
    rows: Annotated[NDArray[Any], Shape(("int32",), "U")]


class Activations(Message, kind="activations", phase=Phase.TRAIN, routes=((S, P),)):
    """The cut layer of the requested rows; ``step`` is -1 outside training."""

    step: int
    values: Annotated[NDArray[Any], Shape(REALS, "UC")]


class Gradients(Message, kind="gradients", phase=Phase.TRAIN, routes=((P, S),)):
    """Gradients of the last activations."""

    step: int
    values: Annotated[NDArray[Any], Shape(REALS, "UC")]


class Infer(Message, kind="infer", phase=Phase.TRAIN, routes=((P, S),)):
    """Requests the cut layer of these distinct rows without dropout and without keeping a graph."""

    rows: Annotated[NDArray[Any], Shape(("int32",), "U")]
    sealed: Annotated[NDArray[Any], Shape(("uint8",), "s")]  # the links of new records, as the coordinator sent them


class Embed(Message, kind="embed", phase=Phase.TRAIN, routes=((P, S),)):
    """Requests the embedding of these distinct rows, which no label has influenced; answered by Activations."""

    rows: Annotated[NDArray[Any], Shape(("int32",), "U")]
    sealed: Annotated[NDArray[Any], Shape(("uint8",), "s")]  # as in Infer


class KeepBest(Message, kind="keep-best", phase=Phase.TRAIN, routes=((P, S),)):
    """The current epoch is the best so far."""


class UseBest(Message, kind="use-best", phase=Phase.TRAIN, routes=((P, S),)):
    """Restore the weights of the best epoch."""


class Save(Message, kind="save", phase=Phase.TRAIN, routes=((P, S),)):
    """Write a checkpoint of the state after this many steps."""

    step: int


class Restore(Message, kind="restore", phase=Phase.TRAIN, routes=((P, S),)):
    """Restore the checkpoint of this step."""

    step: int


class ForgetBefore(Message, kind="forget-before", phase=Phase.TRAIN, routes=((P, S),)):
    """Checkpoints older than this step are no longer needed."""

    step: int


class Done(Message, kind="done", phase=Phase.TRAIN, routes=((S, P), (C, P), (C, S))):
    """Confirms a request; ``fault`` describes a failure after which the session continues."""

    fault: str


class Finish(Message, kind="finish", phase=Phase.END, routes=((P, S), (P, C))):
    """Training is complete: save your part of the model."""


class NewQueries(Message, kind="new-queries", phase=Phase.PREDICT, routes=((P, C),)):
    """Encoded identifiers of new primary records; answered by Partners with the scale and noise of training."""

    partner_list: str
    fingerprint: str
    n_bits: int
    bits: Annotated[NDArray[Any], Shape(("uint8",), "nb")]


KINDS: dict[str, type[Message]] = {message.kind: message for message in Message.__subclasses__()}


@dataclass(frozen=True, order=True)
class LedgerEntry:
    """Messages and bytes of one kind between two parties in one phase."""

    phase: str
    kind: str
    sender: str
    receiver: str
    messages: int
    bytes: int


class Ledger:
    """Counts every frame that a party sends or receives; bytes include headers and resent frames."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str, str], list[int]] = {}
        self._lock = threading.Lock()

    def count(self, message: Message, sender: Party, receiver: Party, size: int, phase: Phase | None = None) -> None:
        """Count one frame; ``phase`` overrides the phase of the message class."""
        key = (phase or message.phase).value, message.kind, str(sender), str(receiver)
        self.add(key, 1, size)

    def add(self, key: tuple[str, str, str, str], messages: int, size: int) -> None:
        """Add messages and bytes of one phase, kind, sender and receiver."""
        with self._lock:
            counts = self._counts.setdefault(key, [0, 0])
            counts[0] += messages
            counts[1] += size

    def entries(self) -> list[LedgerEntry]:
        """Return all entries in the order of the phases."""
        order = [phase.value for phase in Phase]
        with self._lock:
            entries = [LedgerEntry(*key, *counts) for key, counts in self._counts.items()]
        return sorted(entries, key=lambda entry: (order.index(entry.phase), entry))

    @property
    def total_bytes(self) -> int:
        """The bytes of all frames, sent and received."""
        return sum(entry.bytes for entry in self.entries())


def sum_entries(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Add up entries with the same phase, kind, sender and receiver."""
    total = Ledger()
    for entry in entries:
        total.add((entry.phase, entry.kind, entry.sender, entry.receiver), entry.messages, entry.bytes)
    return total.entries()


def merge_ledgers(ledgers: Iterable[Ledger]) -> list[LedgerEntry]:
    """Merge the ledgers of all parties in one process; each frame, counted at both ends, counts once."""
    found = {(e.phase, e.kind, e.sender, e.receiver): e for ledger in ledgers for e in ledger.entries()}
    return sum_entries(found.values())
