"""Everything that may leave an organisation: the parties, one class per message, and the ledger that counts messages.

Each message class names the pairs of roles that may exchange it. A message carries plain facts (integers, floats,
text, flags) and arrays with a fixed type and number of dimensions; nothing else can be encoded. Letters: n primary
records, m secondary records, K partners, U distinct rows, C width of the cut layer, b bytes of a filter, s sealed
bytes. Arrays of one message agree in the letters they share.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from numpy.typing import NDArray

from fedsim.errors import SettingError

PARTY_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


class Role(StrEnum):
    """What a party does in a job; a certificate is valid for one role only."""

    PRIMARY = "primary"
    SECONDARY = "secondary"
    COORDINATOR = "coordinator"


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
            raise SettingError(
                f"invalid party name '{self.name[:60]}'; use up to 40 lowercase letters, digits and '-'",
                code="invalid-party-name",
            )

    def __str__(self) -> str:
        return f"{self.role} '{self.name}'"


MAX_PEER_TEXT = 2000  # characters of a peer's text that are shown


def safe_peer_text(text: str) -> str:
    """Return text from a peer as one printable line, safe for logs, terminals and other peers.

    >>> safe_peer_text("disk full\\x1b[2J\\n")
    'disk full?[2J?'
    """
    return replace_unprintable(text[:MAX_PEER_TEXT])


def replace_unprintable(text: str) -> str:
    """Replace every unprintable character, including terminal control sequences, by a question mark."""
    return "".join(char if char.isprintable() else "?" for char in text)


PROTOCOL = 1  # increase whenever a message changes
OUTSIDE_TRAINING = -1  # the step of activations that no gradients follow

P, S, C = Role.PRIMARY, Role.SECONDARY, Role.COORDINATOR
Route = tuple[Role, Role]
EVERYONE: tuple[Route, ...] = ((P, C), (C, P), (S, C), (C, S), (S, P), (P, S))
REALS = ("float32", "float16", "int16")  # int16 holds the bits of bfloat16, which NumPy lacks


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


class Message:
    """Base class of all messages; ``routes`` lists the allowed pairs of sender and receiver."""

    kind: ClassVar[str] = "message"
    phase: ClassVar[Phase]
    routes: ClassVar[tuple[Route, ...]]

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # the content must not reach a log


@dataclass(frozen=True, eq=False, repr=False)
class Hello(Message):
    """First message on every connection: the caller, its job, and how far an interrupted session got."""

    kind, phase, routes = "hello", Phase.JOIN, EVERYONE
    party: str
    role: str
    job: str  # the job file as JSON, equal at all parties
    versions: str  # software versions as JSON
    instance: str  # random, drawn when the process starts
    resume: str  # the session to resume, or empty
    received: int
    clock: float


@dataclass(frozen=True, eq=False, repr=False)
class Welcome(Message):
    """Accepts a Hello; a session other than the requested one is new."""

    kind, phase, routes = "welcome", Phase.JOIN, EVERYONE
    session: str
    received: int
    versions: str
    clock: float


@dataclass(frozen=True, eq=False, repr=False)
class Refusal(Message):
    """Rejects a Hello. ``passing``: it may be accepted later."""

    kind, phase, routes = "refusal", Phase.JOIN, EVERYONE
    reason: str
    passing: bool


@dataclass(frozen=True, eq=False, repr=False)
class Trouble(Message):
    """The sender stops; ``origin`` is the party that failed first. The reason contains no data.

    ``passing``: the job itself is fine; a party was unreachable or was stopped by its owner.
    """

    kind, phase, routes = "trouble", Phase.END, EVERYONE
    origin: str
    reason: str
    passing: bool


@dataclass(frozen=True, eq=False, repr=False)
class Farewell(Message):
    """The job is done; the receiver may exit."""

    kind, phase, routes = "farewell", Phase.END, EVERYONE


@dataclass(frozen=True, eq=False, repr=False)
class Notice(Message):
    """Explains why a reply is delayed."""

    kind, phase, routes = "notice", Phase.JOIN, EVERYONE
    text: str


@dataclass(frozen=True, eq=False, repr=False)
class Offer(Message):
    """Announces encoded identifiers by digest; ``have`` is the digest of the last answer received."""

    kind, phase, routes = "offer", Phase.LINK, ((P, C), (S, C))
    partner_list: str
    digest: str
    have: str


@dataclass(frozen=True, eq=False, repr=False)
class Want(Message):
    """Whether the offered identifiers must be sent."""

    kind, phase, routes = "want", Phase.LINK, ((C, P), (C, S))
    wanted: bool


@dataclass(frozen=True, eq=False, repr=False)
class Candidates(Message):
    """Encoded identifiers of a secondary."""

    kind, phase, routes = "candidates", Phase.LINK, ((S, C),)
    partner_list: str
    fingerprint: str
    n_bits: int
    bits: Annotated[NDArray[Any], Shape(("uint8",), "mb")]


@dataclass(frozen=True, eq=False, repr=False)
class Queries(Message):
    """Encoded identifiers of the primary; ``counted`` marks the training records, which determine the scale."""

    kind, phase, routes = "queries", Phase.LINK, ((P, C),)
    partner_list: str
    fingerprint: str
    n_bits: int
    bits: Annotated[NDArray[Any], Shape(("uint8",), "nb")]
    counted: Annotated[NDArray[Any], Shape(("uint8",), "n")]


@dataclass(frozen=True, eq=False, repr=False)
class Partners(Message):
    """The partners of every primary record as pseudonymous row numbers, with noisy similarities.

    The message contains neither the scale nor the noise chosen for a tau: both together would turn similarities back
    into distances.
    """

    kind, phase, routes = "partners", Phase.LINK, ((C, P),)
    partner_list: str
    n_candidates: int
    partner: Annotated[NDArray[Any], Shape(("int32",), "nK")]
    similarity: Annotated[NDArray[Any], Shape(("float32",), "nK")]
    sealed: Annotated[NDArray[Any], Shape(("uint8",), "s")]  # for the secondary, if the job hides rows


@dataclass(frozen=True, eq=False, repr=False)
class RowOrder(Message):
    """The row of the secondary behind each pseudonym; the primary never sees it.

    If the job hides rows, every link has its own number, and ``seal`` is the key of row lists that are sealed later.
    """

    kind, phase, routes = "row-order", Phase.LINK, ((C, S),)
    partner_list: str
    order: Annotated[NDArray[Any], Shape(("int32",), "m")]
    seal: Annotated[NDArray[Any], Shape(("uint8",), "s")]


@dataclass(frozen=True, eq=False, repr=False)
class Unchanged(Message):
    """The last answer is still valid."""

    kind, phase, routes = "unchanged", Phase.LINK, ((C, P), (C, S))


@dataclass(frozen=True, eq=False, repr=False)
class Meet(Message):
    """First request to a secondary: how wide is your cut layer? ``predicting``: load the saved model."""

    kind, phase, routes = "meet", Phase.JOIN, ((P, S),)
    predicting: bool


@dataclass(frozen=True, eq=False, repr=False)
class Begin(Message):
    """Start training from fresh random weights, for this many steps.

    ``study``: a comparison run with its own seed; nothing of it is saved. ``placebo``: the secondary shuffles its
    feature rows first. Without ``study`` this is the training of the job, with the seed of the job.
    """

    kind, phase, routes = "begin", Phase.TRAIN, ((P, S),)
    total_steps: int
    study: bool = False
    seed: int = 0
    placebo: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Ready(Message):
    """The width of the cut layer and the number of records."""

    kind, phase, routes = "ready", Phase.JOIN, ((S, P),)
    width: int
    n_records: int


@dataclass(frozen=True, eq=False, repr=False)
class Ask(Message):
    """Requests the cut layer of these distinct rows for a training step."""

    kind, phase, routes = "ask", Phase.TRAIN, ((P, S),)
    step: int
    rows: Annotated[NDArray[Any], Shape(("int32",), "U")]


@dataclass(frozen=True, eq=False, repr=False)
class Activations(Message):
    """The cut layer of the requested rows; ``step`` is -1 outside training."""

    kind, phase, routes = "activations", Phase.TRAIN, ((S, P),)
    step: int
    values: Annotated[NDArray[Any], Shape(REALS, "UC")]


@dataclass(frozen=True, eq=False, repr=False)
class Gradients(Message):
    """Gradients of the last activations."""

    kind, phase, routes = "gradients", Phase.TRAIN, ((P, S),)
    step: int
    values: Annotated[NDArray[Any], Shape(REALS, "UC")]


@dataclass(frozen=True, eq=False, repr=False)
class Infer(Message):
    """Requests the cut layer of these distinct rows without dropout and without keeping a graph."""

    kind, phase, routes = "infer", Phase.TRAIN, ((P, S),)
    rows: Annotated[NDArray[Any], Shape(("int32",), "U")]
    sealed: Annotated[NDArray[Any], Shape(("uint8",), "s")]  # the meaning of the rows, if the job hides rows


@dataclass(frozen=True, eq=False, repr=False)
class KeepBest(Message):
    """The current epoch is the best so far."""

    kind, phase, routes = "keep-best", Phase.TRAIN, ((P, S),)


@dataclass(frozen=True, eq=False, repr=False)
class UseBest(Message):
    """Restore the weights of the best epoch."""

    kind, phase, routes = "use-best", Phase.TRAIN, ((P, S),)


@dataclass(frozen=True, eq=False, repr=False)
class Save(Message):
    """Write a checkpoint of the state after this many steps."""

    kind, phase, routes = "save", Phase.TRAIN, ((P, S),)
    step: int


@dataclass(frozen=True, eq=False, repr=False)
class Restore(Message):
    """Restore the checkpoint of this step."""

    kind, phase, routes = "restore", Phase.TRAIN, ((P, S),)
    step: int


@dataclass(frozen=True, eq=False, repr=False)
class ForgetBefore(Message):
    """Checkpoints older than this step are no longer needed."""

    kind, phase, routes = "forget-before", Phase.TRAIN, ((P, S),)
    step: int


@dataclass(frozen=True, eq=False, repr=False)
class Done(Message):
    """Confirms a request; ``fault`` describes a failure after which the session continues."""

    kind, phase, routes = "done", Phase.TRAIN, ((S, P), (C, P))
    fault: str


@dataclass(frozen=True, eq=False, repr=False)
class Finish(Message):
    """Training is complete: save your part of the model."""

    kind, phase, routes = "finish", Phase.END, ((P, S), (P, C))


@dataclass(frozen=True, eq=False, repr=False)
class NewQueries(Message):
    """Encoded identifiers of new primary records; answered by Partners with the scale and noise of training."""

    kind, phase, routes = "new-queries", Phase.PREDICT, ((P, C),)
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
        with self._lock:
            counts = self._counts.setdefault(key, [0, 0])
            counts[0] += 1
            counts[1] += size

    def entries(self) -> list[LedgerEntry]:
        """Return all entries in the order of the phases."""
        with self._lock:
            return _by_phase(LedgerEntry(*key, *counts) for key, counts in self._counts.items())

    @property
    def total_bytes(self) -> int:
        """The bytes of all frames, sent and received."""
        return sum(entry.bytes for entry in self.entries())


def sum_entries(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Add up entries with the same phase, kind, sender and receiver."""
    counts: dict[tuple[str, str, str, str], list[int]] = {}
    for entry in entries:
        found = counts.setdefault((entry.phase, entry.kind, entry.sender, entry.receiver), [0, 0])
        found[0] += entry.messages
        found[1] += entry.bytes
    return _by_phase(LedgerEntry(*key, *found) for key, found in counts.items())


def merge_ledgers(ledgers: Iterable[Ledger]) -> list[LedgerEntry]:
    """Merge the ledgers of all parties in one process; each frame, counted at both ends, counts once."""
    found = {(e.phase, e.kind, e.sender, e.receiver): e for ledger in ledgers for e in ledger.entries()}
    return _by_phase(found.values())


def _by_phase(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    order = [phase.value for phase in Phase]
    return sorted(entries, key=lambda entry: (order.index(entry.phase), entry))
