"""Everything that may leave an organisation: one class per message, and which role may send it to which.

A message carries plain facts (whole numbers, numbers, text, flags) and arrays of a fixed type and number of dimensions;
nothing else can be encoded. Letters: n primary records, m secondary records, K partners, U distinct rows, C width of
the cut layer, b bytes of a filter, s sealed bytes; arrays of one message agree in the letters they share."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from numpy.typing import NDArray

from fedsim.errors import SettingError

# Who takes part in a job


PARTY_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


class Role(StrEnum):
    """What a party does; a certificate is good for one role only."""

    PRIMARY = "primary"
    SECONDARY = "secondary"
    COORDINATOR = "coordinator"


@dataclass(frozen=True)
class Party:
    """A role and a name, as a certificate proves them.

    >>> str(Party(Role.SECONDARY, "rentals"))
    "secondary 'rentals'"
    """

    role: Role
    name: str

    def __post_init__(self) -> None:
        if not PARTY_NAME.fullmatch(self.name):
            raise SettingError(
                f"party name '{self.name[:60]}'; use up to 40 small letters, digits and '-', as in a host name"
            )

    def __str__(self) -> str:
        return f"{self.role} '{self.name}'"


# Words that come from a peer, made harmless for logs, terminals and the next peer


MAX_PEER_TEXT = 2000


def safe_peer_text(words: str) -> str:
    """One line of what can be printed.

    >>> safe_peer_text("disk full\\x1b[2J\\n")
    'disk full?[2J?'
    """
    return replace_unprintable(words[:MAX_PEER_TEXT])


def replace_unprintable(words: str) -> str:
    """All of it, without what steers a terminal."""
    return "".join(each if each.isprintable() else "?" for each in words)


PROTOCOL = 1  # raise it whenever a message changes
OUTSIDE_TRAINING = -1  # the step of activations that no gradients follow

P, S, C = Role.PRIMARY, Role.SECONDARY, Role.COORDINATOR
Route = tuple[Role, Role]
EVERYONE: tuple[Route, ...] = ((P, C), (C, P), (S, C), (C, S), (S, P), (P, S))
REALS = ("float32", "float16", "int16")  # int16 holds the bits of bfloat16, which NumPy does not have


class Phase(StrEnum):
    """The parts of a job, in order."""

    JOIN = "join"
    LINK = "link"
    TRAIN = "train"
    PREDICT = "predict"
    END = "end"


@dataclass(frozen=True)
class Shape:
    """What an array of a message may be: types, and a letter per dimension."""

    dtypes: tuple[str, ...]
    letters: str


class Message:
    """Base of all messages; ``routes`` are the pairs of sender and receiver that may use it."""

    kind: ClassVar[str] = "message"  # of any kind
    phase: ClassVar[Phase]
    routes: ClassVar[tuple[Route, ...]]

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # contents belong into no log


@dataclass(frozen=True, eq=False, repr=False)
class Hello(Message):
    """The first word on every line: who calls, about which job, and where an interrupted conversation stood."""

    kind, phase, routes = "hello", Phase.JOIN, EVERYONE
    party: str
    role: str
    job: str  # the job as JSON; it is the same file everywhere
    versions: str  # of the software, as JSON
    instance: str  # drawn when the process started
    resume: str  # the session to go on with, or nothing
    received: int
    clock: float


@dataclass(frozen=True, eq=False, repr=False)
class Welcome(Message):
    """The answer to a Hello that was accepted; a session other than the one asked for is a new one."""

    kind, phase, routes = "welcome", Phase.JOIN, EVERYONE
    session: str
    received: int
    versions: str
    clock: float


@dataclass(frozen=True, eq=False, repr=False)
class Refusal(Message):
    """The answer to a Hello that was not accepted. ``passing``: it may be accepted later."""

    kind, phase, routes = "refusal", Phase.JOIN, EVERYONE
    reason: str
    passing: bool


@dataclass(frozen=True, eq=False, repr=False)
class Trouble(Message):
    """The sender gives up; ``origin`` is the party that failed first. The reason holds no data.

    ``passing``: nothing is wrong with the job, somebody was away or was stopped.
    """

    kind, phase, routes = "trouble", Phase.END, EVERYONE
    origin: str
    reason: str
    passing: bool


@dataclass(frozen=True, eq=False, repr=False)
class Farewell(Message):
    """All is done; the receiver may leave."""

    kind, phase, routes = "farewell", Phase.END, EVERYONE


@dataclass(frozen=True, eq=False, repr=False)
class Notice(Message):
    """Why an answer takes long."""

    kind, phase, routes = "notice", Phase.JOIN, EVERYONE
    text: str


@dataclass(frozen=True, eq=False, repr=False)
class Offer(Message):
    """Identifiers are ready; digests tell what need not be sent again. ``have`` is that of the last answer in hand."""

    kind, phase, routes = "offer", Phase.LINK, ((P, C), (S, C))
    partner_list: str
    digest: str
    have: str


@dataclass(frozen=True, eq=False, repr=False)
class Want(Message):
    """Whether the identifiers offered are to be sent."""

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
    """Encoded identifiers of the primary; ``counted`` marks the training records, from which the scale is learnt."""

    kind, phase, routes = "queries", Phase.LINK, ((P, C),)
    partner_list: str
    fingerprint: str
    n_bits: int
    bits: Annotated[NDArray[Any], Shape(("uint8",), "nb")]
    counted: Annotated[NDArray[Any], Shape(("uint8",), "n")]


@dataclass(frozen=True, eq=False, repr=False)
class Partners(Message):
    """For every primary record its partners under pseudonymous row numbers, and how similar they are, with noise.

    Neither the scale nor the noise chosen for a tau is told: with both, similarities would be distances again.
    """

    kind, phase, routes = "partners", Phase.LINK, ((C, P),)
    partner_list: str
    n_candidates: int
    partner: Annotated[NDArray[Any], Shape(("int32",), "nK")]
    similarity: Annotated[NDArray[Any], Shape(("float32",), "nK")]
    sealed: Annotated[NDArray[Any], Shape(("uint8",), "s")]  # for the secondary, where rows are hidden


@dataclass(frozen=True, eq=False, repr=False)
class RowOrder(Message):
    """Which of the secondary's rows each pseudonym stands for; the primary never sees it.

    Where rows are hidden, every link has a number of its own, and ``seal`` opens what the coordinator seals later.
    """

    kind, phase, routes = "row-order", Phase.LINK, ((C, S),)
    partner_list: str
    order: Annotated[NDArray[Any], Shape(("int32",), "m")]
    seal: Annotated[NDArray[Any], Shape(("uint8",), "s")]


@dataclass(frozen=True, eq=False, repr=False)
class Unchanged(Message):
    """The last answer still holds."""

    kind, phase, routes = "unchanged", Phase.LINK, ((C, P), (C, S))


@dataclass(frozen=True, eq=False, repr=False)
class Meet(Message):
    """The first question to a secondary: how wide is your cut layer? ``predicting``: take the part you have saved."""

    kind, phase, routes = "meet", Phase.JOIN, ((P, S),)
    predicting: bool


@dataclass(frozen=True, eq=False, repr=False)
class Begin(Message):
    """Start training anew, from drawn weights, for this many steps.

    ``study``: a training to compare with, from a seed of its own, of which nothing is kept; as a ``placebo`` the
    secondary shuffles its feature rows first. Otherwise it is the job's own training, and the seed the job's.
    """

    kind, phase, routes = "begin", Phase.TRAIN, ((P, S),)
    total_steps: int
    study: bool = False
    seed: int = 0
    placebo: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Ready(Message):
    """How wide the cut layer is, and how many records there are."""

    kind, phase, routes = "ready", Phase.JOIN, ((S, P),)
    width: int
    n_records: int


@dataclass(frozen=True, eq=False, repr=False)
class Ask(Message):
    """The cut layer of these distinct rows, for a training step."""

    kind, phase, routes = "ask", Phase.TRAIN, ((P, S),)
    step: int
    rows: Annotated[NDArray[Any], Shape(("int32",), "U")]


@dataclass(frozen=True, eq=False, repr=False)
class Activations(Message):
    """The cut layer of the rows asked for; ``step`` is -1 outside training."""

    kind, phase, routes = "activations", Phase.TRAIN, ((S, P),)
    step: int
    values: Annotated[NDArray[Any], Shape(REALS, "UC")]


@dataclass(frozen=True, eq=False, repr=False)
class Gradients(Message):
    """Gradients of the activations given last."""

    kind, phase, routes = "gradients", Phase.TRAIN, ((P, S),)
    step: int
    values: Annotated[NDArray[Any], Shape(REALS, "UC")]


@dataclass(frozen=True, eq=False, repr=False)
class Infer(Message):
    """The cut layer of these distinct rows with nothing dropped and nothing remembered."""

    kind, phase, routes = "infer", Phase.TRAIN, ((P, S),)
    rows: Annotated[NDArray[Any], Shape(("int32",), "U")]
    sealed: Annotated[NDArray[Any], Shape(("uint8",), "s")]  # what the rows mean, where they are hidden


@dataclass(frozen=True, eq=False, repr=False)
class KeepBest(Message):
    """This epoch is the best so far."""

    kind, phase, routes = "keep-best", Phase.TRAIN, ((P, S),)


@dataclass(frozen=True, eq=False, repr=False)
class UseBest(Message):
    """Go back to the weights of the best epoch."""

    kind, phase, routes = "use-best", Phase.TRAIN, ((P, S),)


@dataclass(frozen=True, eq=False, repr=False)
class Save(Message):
    """Write a checkpoint of the state after this many steps."""

    kind, phase, routes = "save", Phase.TRAIN, ((P, S),)
    step: int


@dataclass(frozen=True, eq=False, repr=False)
class Restore(Message):
    """Go back to the checkpoint of this step."""

    kind, phase, routes = "restore", Phase.TRAIN, ((P, S),)
    step: int


@dataclass(frozen=True, eq=False, repr=False)
class ForgetBefore(Message):
    """Checkpoints older than this step are no longer needed."""

    kind, phase, routes = "forget-before", Phase.TRAIN, ((P, S),)
    step: int


@dataclass(frozen=True, eq=False, repr=False)
class Done(Message):
    """What was asked is done; a fault that leaves both sides able to go on is named."""

    kind, phase, routes = "done", Phase.TRAIN, ((S, P), (C, P))
    fault: str


@dataclass(frozen=True, eq=False, repr=False)
class Finish(Message):
    """Training has ended: save your part of the model."""

    kind, phase, routes = "finish", Phase.END, ((P, S), (P, C))


@dataclass(frozen=True, eq=False, repr=False)
class NewQueries(Message):
    """Encoded identifiers of new primary records; answered by Partners, with scale and noise rule of training."""

    kind, phase, routes = "new-queries", Phase.PREDICT, ((P, C),)
    partner_list: str
    fingerprint: str
    n_bits: int
    bits: Annotated[NDArray[Any], Shape(("uint8",), "nb")]


def _by_kind(classes: Iterable[type[Message]]) -> dict[str, type[Message]]:
    return {found.kind: found for found in classes}


KINDS: dict[str, type[Message]] = _by_kind(Message.__subclasses__())


@dataclass(frozen=True, order=True)
class LedgerEntry:
    """One line of the ledger."""

    phase: str
    kind: str
    sender: str
    receiver: str
    messages: int
    bytes: int


class Ledger:
    """Counts at one party; bytes are those of whole frames, sent again or not."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str, str], list[int]] = {}
        self._lock = threading.Lock()

    def note(self, message: Message, sender: Party, receiver: Party, size: int, phase: Phase | None = None) -> None:
        """Count one frame; a phase is given where the message's own does not say it."""
        key = (phase or message.phase).value, message.kind, str(sender), str(receiver)
        with self._lock:
            counts = self._counts.setdefault(key, [0, 0])
            counts[0] += 1
            counts[1] += size

    def entries(self) -> list[LedgerEntry]:
        """All lines, in the order of the phases."""
        with self._lock:
            found = [LedgerEntry(*key, *counts) for key, counts in self._counts.items()]
        return _by_phase(found)

    @property
    def total_bytes(self) -> int:
        """Bytes of all frames, sent and received."""
        return sum(entry.bytes for entry in self.entries())


def sum_entries(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """One line for all that have the same phase, kind, sender and receiver."""
    counts: dict[tuple[str, str, str, str], list[int]] = {}
    for entry in entries:
        found = counts.setdefault((entry.phase, entry.kind, entry.sender, entry.receiver), [0, 0])
        found[0] += entry.messages
        found[1] += entry.bytes
    return _by_phase(LedgerEntry(*key, *found) for key, found in counts.items())


def merge_ledgers(ledgers: Iterable[Ledger]) -> list[LedgerEntry]:
    """The ledgers of all parties of one process, every frame counted once (each was noted by both its ends)."""
    found = {(e.phase, e.kind, e.sender, e.receiver): e for ledger in ledgers for e in ledger.entries()}
    return _by_phase(found.values())


def _by_phase(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    order = [phase.value for phase in Phase]
    return sorted(entries, key=lambda entry: (order.index(entry.phase), entry))
