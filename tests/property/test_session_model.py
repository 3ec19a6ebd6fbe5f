"""The model of session and resume holds in every state, fails where a rule is broken, and is what the code does.

Walks through the model are taken step by step by real sessions, a real acceptor and a real secondary with its
checkpoints; after every step both must agree on all that the model knows.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsim.errors import PeerError
from fedsim.protocol import messages as m
from fedsim.protocol.cut_layer import wire_format
from fedsim.protocol.handshake import SessionAcceptor, SessionConnector
from fedsim.protocol.roles.secondary_role import RequestCounter, RequestLimits, RowMapping, SecondaryResponder
from fedsim.protocol.session import PeerRestarted
from fedsim.protocol.transport import InProcessTransport, decode
from fedsim.splitnn.secondary_model import start_secondary
from property.session_model import FAULTS, TRANSITIONS, Rules, World, explore
from session_fixtures import CITY, RENTALS, connection_of
from training_fixtures import encoded_config, small_secondaries

FEATURES, BELOW = small_secondaries()[0].features, encoded_config().secondary
ROWS = np.array([0, 3, 4], np.int32)
SMALL = Rules(steps=2, every=1, faults=2)
BROKEN = ("drops_old_frames", "resends", "secondary_saves_first", "begins_anew")
WALKS = int(os.environ.get("FEDSIM_WALKS", "25"))


@pytest.mark.parametrize("rules", [Rules(steps=3, every=2, faults=1), SMALL], ids=str)
def test_no_fault_at_any_message_loses_a_step_or_takes_it_twice(rules):
    found = explore(rules)
    assert (found.fault, found.trace) == ("", ())
    assert found.states > 1000
    assert found.ended > 10


@pytest.mark.parametrize("rule", BROKEN)
def test_without_one_of_its_rules_the_model_fails(rule):
    assert explore(replace(SMALL, **{rule: False})).fault


class Line:
    """Frames on their way, delivered one by one."""

    def __init__(self):
        self.sent, self.closed = [], False

    def send(self, frame):
        self.sent.append(frame)

    def close(self):
        self.closed = True


class RealWorld:
    """The code in the place of the model: each method does what the transition of that label does."""

    def __init__(self, folder, rules):
        self.folder, self.rules, self.instances = folder, rules, 0
        self.disk, self.done = frozenset(), False
        self.to_primary = self.to_secondary = self.acceptor = self.here = self.there = self.waiting = None
        self.crash_primary(), self.crash_secondary()

    def crash_primary(self):
        self.cut()
        self.acceptor = SessionAcceptor(connection_of(CITY), [RENTALS])
        self.here, self.at = None, ("idle",)

    def crash_secondary(self):
        self.cut()
        self.instances += 1
        connection = connection_of(RENTALS, instance=f"rentals-{self.instances}")
        self.connector = SessionConnector(connection, InProcessTransport(), "", CITY)
        limits = RequestLimits(self.rules.steps, self.rules.steps, 0, 3, 0)
        self.responder = SecondaryResponder(
            width=4,
            order=RowMapping(np.arange(9, dtype=np.int32), np.zeros(32, np.uint8), 3),
            requests=RequestCounter(limits, self.folder),
            start=lambda begin: start_secondary(
                "rentals", FEATURES, BELOW, total_steps=begin.total_steps, folder=self.folder / "checkpoints"
            ),
            load_trained=lambda: None,
            finish=lambda party: torch.save(party.model.network.state_dict(), self.folder / "model"),
            on_new_rows=lambda rows: None,
            on_farewell=lambda: None,
            form=wire_format("float32"),
        )
        self.there = self.waiting = None

    def cut(self):
        accepted = self.acceptor.sessions() if self.acceptor else []
        for session in (*accepted, self.waiting, self.there):
            if session is not None and session._stream is not None:
                session._detach(session._stream)
        self.to_primary = self.to_secondary = None

    def dial(self):
        hello = self.connector._hello(self._newest_alive())
        self.to_secondary, self.to_primary = Line(), Line()
        self.acceptor._admit(None, hello, self.to_secondary)

    def _newest_alive(self):
        newest = self.waiting or self.there
        return None if newest is None or newest.is_over else newest

    def welcome(self):
        welcome = decode(self.to_secondary.sent.pop(0)).message
        newest = self.waiting or self.there
        if newest is not None and welcome.session == newest.ident.hex():
            newest.attach(self.to_primary, welcome.received)
            return
        session = self.connector._begin(self.to_primary, welcome)
        if self.there is None:
            self.there = session
        else:
            self.waiting = session
            self.there.end(PeerRestarted(CITY))

    def deliver_to_secondary(self):
        (self.waiting or self.there)._take(self.to_secondary.sent.pop(0))

    def deliver_to_primary(self):
        next(iter(self.acceptor.sessions()))._take(self.to_primary.sent.pop(0))

    def repeat(self, line):
        line.sent.insert(0, line.sent[0])

    def begin(self):
        self.here = self.acceptor.session_with(RENTALS)
        self._say(m.Begin(self.rules.steps), ("begin",))

    def primary_reads(self):
        message = self.here.receive().message
        what, *at = self.at
        if what == "begin" and self.disk:
            self._say(m.Restore(max(self.disk)), ("restore", max(self.disk)))
        elif what == "begin":
            self._ask(0)
        elif what == "restore":
            assert message.fault == ""
            self._next(at[0])
        elif what == "ask":
            step = at[0]
            assert message.step == step
            self.here.send(m.Gradients(step, values=np.full(message.values.shape, step + 1, np.float32)))
            if (step + 1) % self.rules.every and step + 1 < self.rules.steps:
                self._ask(step + 1)
            else:
                self._say(m.Save(step + 1), ("save", step + 1))
        elif what == "save":
            before = max(self.disk, default=0)
            self.disk = frozenset(kept for kept in self.disk if kept >= before) | {at[0]}
            self.here.send(m.ForgetBefore(before))
            self._next(at[0])
        else:
            self.at, self.done = ("idle",), True

    def _next(self, step):
        self._say(m.Finish(), ("finish",)) if step == self.rules.steps else self._ask(step)

    def _ask(self, step):
        self._say(m.Ask(step, rows=ROWS), ("ask", step))

    def _say(self, message, at):
        self.here.send(message)
        self.at = at

    def secondary_reads(self):
        envelope = self.there.receive()
        reply = self.responder._reply(self.there, envelope)
        if reply is not None and not self.there.is_over:
            self.there.send(reply, reply_to=envelope.sequence)

    def next_session(self):
        self.there, self.waiting = self.waiting, None

    def take(self, label):
        steps = {
            "to secondary": self.deliver_to_secondary,
            "to primary": self.deliver_to_primary,
            "repeat to secondary": lambda: self.repeat(self.to_secondary),
            "repeat to primary": lambda: self.repeat(self.to_primary),
            "crash primary": self.crash_primary,
            "crash secondary": self.crash_secondary,
            "next session": self.next_session,
        }
        if label.startswith(("primary reads", "secondary reads")):
            getattr(self, "_".join(label.split()[:2]))()
        else:
            (steps.get(label) or getattr(self, label))()

    def seen(self):
        """All that the model knows of this state, as far as the code shows it."""
        party = self.responder._party
        store = party.checkpoint_store if party else None
        kept = sorted(store.steps()) if store else None
        return {
            "primary": (self.at, self.disk, self.done, side(next(iter(self.acceptor.sessions()), None))),
            "secondary": (
                side(self.there),
                side(self.waiting),
                None if party is None else self.responder._next_step,
                None if party is None or party.pending_shape is None else self.responder._next_step,
                kept,
            ),
            "lines": (len(self.to_primary.sent) if self.to_primary else 0,
                      len(self.to_secondary.sent) if self.to_secondary else 0),
        }  # fmt: skip


def side(session):
    """Numbers of sent, received, unacknowledged and unread messages."""
    if session is None:
        return None
    return session._sent, session.received, len(session._outbox), len(session._inbox)


def modelled(world: World):
    """The same of a state of the model."""
    p, s = world.primary, world.secondary

    def counts(end):
        return None if end is None else (end.sent, end.received, len(end.outbox), len(end.inbox))

    begun = s.weights is not None
    return {
        "primary": (p.at, p.disk, p.done, counts(p.session)),
        "secondary": (
            counts(s.session),
            counts(s.waiting),
            s.next_step if begun else None,
            s.pending if begun else None,
            sorted(map(len, s.disk)) if begun else None,
        ),
        "lines": (len(world.to_primary), len(world.to_secondary)),
    }


def walk(world, rules, rng):
    """A random way to the end; faults come early or late, as chance has it."""
    while True:
        moves = [(transition, *step) for transition in TRANSITIONS for step in transition(world, rules)]
        usual = [move for move in moves if move[0] not in FAULTS]
        if not usual:
            return
        _, label, world = rng.choice(moves if rng.random() < 0.2 else usual)
        yield label, world


def model_bytes(folder):
    return [tensor.numpy().tobytes() for tensor in torch.load(folder / "model", weights_only=True).values()]


def follow(folder, rules, steps):
    """Have the code take these steps and compare it with the model after each."""
    folder.mkdir()
    real = RealWorld(folder, rules)
    for label, world in steps:
        real.take(label)
        assert json.dumps(real.seen(), default=sorted) == json.dumps(modelled(world), default=sorted), label
    return real


def test_the_code_walks_as_the_model_does_and_ends_with_the_same_weights(tmp_path):
    rules, rng = Rules(steps=3, every=2, faults=4), random.Random(16)  # noqa: S311
    quiet = follow(tmp_path / "quiet", rules, walk(World(), replace(rules, faults=0), rng))
    assert quiet.done
    for number in range(WALKS):
        folder = tmp_path / str(number)
        assert follow(folder, rules, walk(World(), rules, rng)).done
        assert model_bytes(folder) == model_bytes(tmp_path / "quiet")


@pytest.mark.parametrize("rule", BROKEN)
def test_what_breaks_a_weaker_model_does_not_break_the_code(tmp_path, rule):
    trace = explore(replace(SMALL, **{rule: False})).trace
    world, steps = World(), []
    for label in trace:  # as far as the full model goes the same way
        after = [step for transition in TRANSITIONS for step in transition(world, SMALL) if step[0] == label]
        if not after:
            break
        world = after[0][1]
        steps.append((label, world))
    assert any(label.startswith(("cut", "crash", "repeat")) for label, _ in steps)
    rest = walk(world, replace(SMALL, faults=0), random.Random(3))  # noqa: S311
    assert follow(tmp_path / "run", SMALL, [*steps, *rest]).done


def test_a_step_that_the_model_does_not_allow_is_refused_by_the_code(tmp_path):
    real = follow(tmp_path / "run", SMALL, [])
    for label in ("dial", "welcome", "begin", "to secondary", "secondary reads begin"):
        real.take(label)
    real.here.send(m.Ask(SMALL.steps, rows=ROWS))
    real.take("to secondary")
    with pytest.raises(PeerError):
        real.secondary_reads()
