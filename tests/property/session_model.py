"""A model of session and resume: a primary and a secondary, a line that breaks, processes that die at any message.

Every state is a value, every transition a function of a state, and :func:`explore` visits all of them. Both layers are
modelled as the code has them: numbered frames kept until they are acknowledged, resent after a reconnect and dropped
when they are old; above them begin, restore, ask, gradients, save and finish, with the checkpoints of both parties.
A secondary's weights are the list of steps it has taken, so a step lost or taken twice is seen at once.

The secondary dials. ``Side`` is one end of a session; messages are tuples such as ``("ask", 3)``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

Wire = tuple[Any, ...]
REPLIES = {"begin": "done", "restore": "done", "save": "done", "finish": "done", "ask": "activations"}


class Violation(Exception):  # noqa: N818
    """A state that must not be."""


@dataclass(frozen=True)
class Side:
    """One end of a session: what it sent, received and has to send again."""

    ident: int
    sent: int = 0
    received: int = 0
    outbox: Wire = ()  # (number, message), not acknowledged
    inbox: Wire = ()
    over: bool = False


@dataclass(frozen=True)
class Primary:
    instance: int = 0
    at: Wire = ("idle",)  # what it waits for
    session: Side | None = None
    claimed: bool = True  # whether its loop has taken up the session
    disk: frozenset[int] = frozenset()
    done: bool = False  # its model is saved


@dataclass(frozen=True)
class Secondary:
    instance: int = 0
    session: Side | None = None
    waiting: Side | None = None  # the session after the one in use, which is over
    weights: Wire | None = None
    pending: int | None = None
    next_step: int = 0
    disk: frozenset[Wire] = frozenset()  # weights, whose length is the step
    model: Wire | None = None


@dataclass(frozen=True)
class World:
    primary: Primary = Primary()
    secondary: Secondary = Secondary()
    up: bool = False  # whether the primary holds a line
    welcomed: bool = False  # whether the secondary holds it, too
    to_primary: Wire = ()  # frames on the line: (number, acknowledged, message)
    to_secondary: Wire = ()
    idents: int = 0
    faults: int = 0


@dataclass(frozen=True)
class Rules:
    """Sizes of the model, and one flag for every rule that keeps it right, so that a test can break one."""

    steps: int = 3
    every: int = 2  # steps between checkpoints
    faults: int = 2  # cuts, repeated frames and crashes together
    drops_old_frames: bool = True
    resends: bool = True
    secondary_saves_first: bool = True
    begins_anew: bool = True  # whether Begin forgets what an earlier attempt left


# The session layer


def send(side: Side, message: Wire, line: Wire, *, up: bool) -> tuple[Side, Wire]:
    """Queue a message and, if there is a line, put it there."""
    number = side.sent + 1
    side = replace(side, sent=number, outbox=(*side.outbox, (number, message)))
    return side, (*line, (number, side.received, message)) if up else line


def take(side: Side, frame: Wire, rules: Rules) -> Side:
    """Receive one frame: forget what is acknowledged, deliver what is new."""
    number, acknowledged, message = frame
    if number > side.received + 1:
        raise Violation("a frame is missing")
    side = replace(side, outbox=tuple(entry for entry in side.outbox if entry[0] > acknowledged))
    if number <= side.received and rules.drops_old_frames:
        return side
    return replace(side, received=max(number, side.received), inbox=(*side.inbox, message))


def attach(side: Side, received: int, rules: Rules) -> tuple[Side, Wire]:
    """Continue on a new line: forget what the peer has, send the rest again."""
    rest = tuple(entry for entry in side.outbox if entry[0] > received)
    frames = tuple((number, side.received, message) for number, message in rest) if rules.resends else ()
    return replace(side, outbox=rest), frames


# The transitions; each yields (what happened, the state after it)

Step = tuple[str, World]
Transition = Callable[[World, Rules], Iterator[Step]]


def dial(world: World, rules: Rules) -> Iterator[Step]:
    """The secondary dials; the primary admits it, resumes its session or begins another, and says welcome."""
    p, s = world.primary, world.secondary
    if world.up or p.done:
        return
    newest = s.waiting or s.session
    resume = newest.ident if newest and not newest.over else -1
    old = p.session
    if old is None or old.over or old.ident != resume:
        ident = world.idents + 1
        p = replace(p, session=Side(ident), claimed=False)
        world, frames = replace(world, idents=ident), ()
    else:
        session, frames = attach(old, newest.received if newest else 0, rules)
        p = replace(p, session=session)
    assert p.session is not None
    welcome = (("welcome", p.session.ident, p.session.received),)
    yield "dial", replace(world, primary=p, up=True, to_primary=(), to_secondary=(*welcome, *frames))


def deliver_to_secondary(world: World, rules: Rules) -> Iterator[Step]:
    """The next frame arrives at the secondary; the first of a line is the welcome."""
    s = world.secondary
    if not world.to_secondary:
        return
    frame, *rest = world.to_secondary
    if frame[0] == "welcome":
        _, ident, received = frame
        newest = s.waiting or s.session
        if newest and newest.ident == ident:
            side, frames = attach(newest, received, rules)
            s = replace(s, waiting=side) if s.waiting else replace(s, session=side)
        else:
            ended = replace(s.session, over=True) if s.session else None
            # A session whose last messages are still unread stays in use until they are.
            s = replace(s, session=ended, waiting=Side(ident)) if ended else replace(s, session=Side(ident))
            frames = ()
        yield "welcome", replace(world, secondary=s, welcomed=True, to_secondary=tuple(rest), to_primary=frames)
        return
    side = take(s.waiting or s.session, frame, rules)  # type: ignore[arg-type]
    s = replace(s, waiting=side) if s.waiting else replace(s, session=side)
    yield "to secondary", replace(world, secondary=s, to_secondary=tuple(rest))


def deliver_to_primary(world: World, rules: Rules) -> Iterator[Step]:
    if world.to_primary and world.primary.session:
        frame, *rest = world.to_primary
        p = replace(world.primary, session=take(world.primary.session, frame, rules))
        yield "to primary", replace(world, primary=p, to_primary=tuple(rest))


def cut(world: World, rules: Rules) -> Iterator[Step]:
    """The line breaks; what was on it is lost."""
    if world.up and world.faults < rules.faults:
        yield "cut", _cut(replace(world, faults=world.faults + 1))


def repeat(world: World, rules: Rules) -> Iterator[Step]:
    """The line delivers a frame twice."""
    if world.faults >= rules.faults:
        return
    world = replace(world, faults=world.faults + 1)
    if world.to_secondary and world.to_secondary[0][0] != "welcome":
        yield "repeat to secondary", replace(world, to_secondary=(world.to_secondary[0], *world.to_secondary))
    if world.to_primary:
        yield "repeat to primary", replace(world, to_primary=(world.to_primary[0], *world.to_primary))


def crash(world: World, rules: Rules) -> Iterator[Step]:
    """A process dies and is started again: only its disk is left."""
    if world.faults >= rules.faults:
        return
    world = _cut(replace(world, faults=world.faults + 1))
    p, s = world.primary, world.secondary
    if not p.done:
        yield "crash primary", replace(world, primary=Primary(p.instance + 1, disk=p.disk))
    yield "crash secondary", replace(world, secondary=Secondary(s.instance + 1, disk=s.disk, model=s.model))


def _cut(world: World) -> World:
    return replace(world, up=False, welcomed=False, to_primary=(), to_secondary=())


# The parties


def run_primary(world: World, rules: Rules) -> Iterator[Step]:
    """The primary's loop reads one message, or takes up a new session and begins another attempt."""
    p = world.primary
    if p.done or p.session is None:
        return
    if not p.claimed:
        p, world = replace(p, claimed=True), replace(world, primary=replace(p, claimed=True))
        yield "begin", _say(world, ("begin",), ("begin",))
        return
    if not p.session.inbox:
        return
    message, *rest = p.session.inbox
    p = replace(p, session=replace(p.session, inbox=tuple(rest)))
    yield f"primary reads {message[0]}", _continue(replace(world, primary=p), message, rules)


def _continue(world: World, message: Wire, rules: Rules) -> World:
    p = world.primary
    what, *at = p.at
    if message[0] != REPLIES[what]:
        raise Violation(f"{message[0]} in reply to {what}")
    if what == "begin":
        return _say(world, ("restore", max(p.disk)), ("restore", max(p.disk))) if p.disk else _ask(world, 0)
    if what == "restore":
        if not message[1]:
            raise Violation("a checkpoint that the primary has is missing at the secondary")
        return _next(world, at[0], rules)
    if what == "ask":
        step = at[0]
        if message[1:] != (step, tuple(range(step))):
            raise Violation(f"step {step} was answered by {message[1:]}")
        world = _say(world, ("gradients", step), p.at)
        if (step + 1) % rules.every and step + 1 < rules.steps:
            return _ask(world, step + 1)
        if not rules.secondary_saves_first:
            world = _keep(world, step + 1)
        return _say(world, ("save", step + 1), ("save", step + 1))
    if what == "save":
        return _next(_keep(world, at[0]), at[0], rules)
    return replace(world, primary=replace(p, at=("idle",), done=True))


def _keep(world: World, step: int) -> World:
    """Write the primary's checkpoint; the one before it stays, older ones go at both parties."""
    p = world.primary
    before = max(p.disk, default=0)
    disk = frozenset(kept for kept in p.disk if kept >= before) | {step}
    return _say(replace(world, primary=replace(p, disk=disk)), ("forget", before), p.at)


def _next(world: World, step: int, rules: Rules) -> World:
    return _say(world, ("finish",), ("finish",)) if step == rules.steps else _ask(world, step)


def _ask(world: World, step: int) -> World:
    return _say(world, ("ask", step), ("ask", step))


def _say(world: World, message: Wire, at: Wire) -> World:
    p = world.primary
    assert p.session is not None
    session, line = send(p.session, message, world.to_secondary, up=world.up)
    return replace(world, primary=replace(p, session=session, at=at), to_secondary=line)


def run_secondary(world: World, rules: Rules) -> Iterator[Step]:
    """The secondary's loop reads one message, or takes up the next session once the last one has no more."""
    s = world.secondary
    if s.waiting and s.session and not s.session.inbox:
        yield "next session", replace(world, secondary=replace(s, session=s.waiting, waiting=None))
        return
    if s.session is None or not s.session.inbox:
        return
    message, *rest = s.session.inbox
    s = replace(s, session=replace(s.session, inbox=tuple(rest)))
    s, reply = answer(s, message, rules)
    if reply is not None and s.session is not None and not s.session.over:
        session, line = send(s.session, reply, world.to_primary, up=world.welcomed and s.waiting is None)
        s, world = replace(s, session=session), replace(world, to_primary=line)
    yield f"secondary reads {message[0]}", replace(world, secondary=s)


def answer(s: Secondary, message: Wire, rules: Rules) -> tuple[Secondary, Wire | None]:  # noqa: C901, PLR0911
    """Do what a message asks of a secondary; raise ``Violation`` where the code would refuse."""
    what, *at = message
    if what == "begin":
        anew = rules.begins_anew or s.weights is None
        return (replace(s, weights=(), pending=None, next_step=0) if anew else s), ("done", True)
    if s.weights is None:
        raise Violation(f"{what} before begin")
    if what == "ask":
        if s.pending is not None or at[0] != s.next_step:
            raise Violation(f"step {at[0]} is asked, {s.next_step} is next and {s.pending} pending")
        return replace(s, pending=at[0]), ("activations", at[0], s.weights)
    if what == "gradients":
        if s.pending != at[0]:
            raise Violation(f"gradients of step {at[0]}, {s.pending} pending")
        return replace(s, pending=None, weights=(*s.weights, at[0]), next_step=at[0] + 1), None
    if what == "save":
        kept = frozenset(weights for weights in s.disk if len(weights) != at[0])
        return replace(s, disk=kept | {s.weights}), ("done", True)
    if what == "restore":
        found = [weights for weights in s.disk if len(weights) == at[0]]
        if not found:
            return s, ("done", False)
        return replace(s, weights=found[0], pending=None, next_step=at[0]), ("done", True)
    if what == "forget":
        return replace(s, disk=frozenset(weights for weights in s.disk if len(weights) >= at[0])), None
    return replace(s, model=s.weights), ("done", True)


TRANSITIONS: tuple[Transition, ...] = (
    dial, deliver_to_secondary, deliver_to_primary, run_primary, run_secondary, cut, repeat, crash,
)  # fmt: skip
FAULTS = (cut, repeat, crash)


def check(world: World, rules: Rules) -> None:
    """Raise ``Violation`` in a state in which a step is lost or was taken twice."""
    s = world.secondary
    for weights in (s.weights or (), s.model or (), *s.disk):
        if weights != tuple(range(len(weights))):
            raise Violation(f"the secondary took the steps {weights}")
    if world.primary.done and s.model != tuple(range(rules.steps)):
        raise Violation(f"the primary ended, and the secondary has {s.model}")


@dataclass(frozen=True)
class Exploration:
    """How many states there are, and the shortest way to a wrong one, if any."""

    states: int
    ended: int
    fault: str = ""
    trace: tuple[str, ...] = ()


def explore(rules: Rules) -> Exploration:
    """Visit every state breadth first."""
    start = World()
    came: dict[World, tuple[World, str] | None] = {start: None}
    queue, ended = deque([start]), 0
    while queue:
        world = queue.popleft()
        moved = False
        for transition in TRANSITIONS:
            try:
                for label, after in transition(world, rules):
                    moved = moved or transition not in FAULTS
                    if after not in came:
                        came[after] = world, label
                        check(after, rules)
                        queue.append(after)
            except Violation as fault:
                return Exploration(len(came), ended, str(fault), (*way_to(came, world), transition.__name__))
        if not moved:
            ended += 1
            if not world.primary.done:
                return Exploration(len(came), ended, "nothing can happen any more", way_to(came, world))
    return Exploration(len(came), ended)


def way_to(came: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    """Return what happened on the shortest way to a state."""
    labels: list[str] = []
    while (before := came[world]) is not None:
        world, label = before
        labels.append(label)
    return tuple(reversed(labels))
