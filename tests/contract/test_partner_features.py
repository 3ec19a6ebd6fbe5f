"""What every source of partner features must keep while a network is trained; add yours to ``SOURCES``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.errors import FedSimError
from fedsim.pipeline.fitted_model import LocalRows, PartnerFeatures
from fedsim.protocol.cut_layer import wire_format
from fedsim.protocol.roles.secondary_role import RequestCounter, RequestLimits, RowMapping, SecondaryResponder
from fedsim.protocol.session import abort_session
from fedsim.protocol.transport import InProcessTransport
from fedsim.runtime.partner_rows import RemoteRows
from fedsim.runtime.party_context import PartyContext, ReconnectingPeer
from fedsim.splitnn.secondary_model import start_secondary
from fedsim.training.loop import training_settings
from job_fixtures import lay_out, read_all
from session_fixtures import CITY, RENTALS, connected, connection_of, joined, started
from training_fixtures import SPLIT, encoded_config, small_secondaries

PARTY, CONFIG, STEPS = small_secondaries()[0], encoded_config(), 6
STACKED = {'method = "fedsim"': 'method = "stacked"', "[network]": '[protection]\nembedding = "random"\n\n[network]'}
ROWS = torch.tensor([0, 3, 4, 8])
EMBEDDING = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)


@dataclass(eq=False)
class World:
    """A source of partner features; ``restart`` ends the process that holds the rows, and starts another."""

    partners: PartnerFeatures
    restart: Callable[[], None]
    saved: list[Any]

    def open(self, folder: Path) -> Any:
        """The only holder of the rows, at step 0."""
        (holder,) = self.partners.open(training_settings(CONFIG, SPLIT, folder)).holders
        holder.begin(STEPS)
        return holder


@contextmanager
def here(folder: Path) -> Iterator[World]:
    yield World(LocalRows([PARTY], EMBEDDING), lambda: None, [])


@contextmanager
def elsewhere(folder: Path) -> Iterator[World]:
    (folder / "files").mkdir(), (folder / "holder").mkdir()
    lay_out(folder / "files", {"job": STACKED})
    job, files = read_all(folder / "files")
    context = PartyContext(job, files["city"], folder, connection_of(CITY), InProcessTransport())
    threads, saved = [], []

    def responder() -> SecondaryResponder:
        limits = RequestLimits(total_steps=STEPS, steps=2 * STEPS, inferences=9, rows_per_step=8, new_records=3)
        return SecondaryResponder(
            width=4,
            order=RowMapping(np.arange(9, dtype=np.int32), np.arange(32, dtype=np.uint8), 3),
            requests=RequestCounter(limits, folder / "holder"),
            start=lambda asked: start_secondary(
                "first", PARTY.features, CONFIG.secondary, total_steps=asked.total_steps, folder=folder / "holder"
            ),
            load_trained=lambda: pytest.fail("nothing is predicted"),
            finish=saved.append,
            on_new_rows=lambda rows: None,
            on_farewell=lambda: None,
            form=wire_format(job.training.wire),
            embedding=torch.from_numpy(EMBEDDING),
        )

    with ExitStack() as stack:

        def call() -> Any:
            there, ours = stack.enter_context(connected(RENTALS, CITY))
            threads.append(started(serve, responder(), there))
            sessions.append(ours)
            return ours

        def restart() -> None:
            sessions[-1].close()

        sessions: list[Any] = []
        peer = ReconnectingPeer(call)
        yield World(RemoteRows(context, peer, PARTY.neighbours), restart, saved)
    joined(*threads)


def serve(role: SecondaryResponder, session: Any) -> None:
    try:
        role.serve(session)
    except FedSimError as error:
        abort_session(session, error)


@pytest.fixture(params=[here, elsewhere])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with request.param(tmp_path) as opened:
        yield opened


def take_step(holder: Any, step: int) -> torch.Tensor:
    reply = holder.activations(ROWS, step)
    holder.descend(torch.ones_like(reply), step)
    return reply


def descend_and_ask(holder: Any, gradients: torch.Tensor) -> None:
    holder.descend(gradients, 0)
    holder.infer(ROWS)


def test_rows_are_the_same_after_their_holder_restarted(world, tmp_path):
    first = world.open(tmp_path / "one")
    drawn, reply = first.infer(ROWS), take_step(first, 0)
    world.restart()
    again = world.open(tmp_path / "two")
    assert torch.equal(again.infer(ROWS), drawn)
    assert torch.equal(take_step(again, 0), reply)


def test_gradients_of_a_step_change_the_network_once(world, tmp_path):
    holder = world.open(tmp_path / "one")
    drawn = holder.infer(ROWS)
    take_step(holder, 0)
    assert not torch.equal(holder.infer(ROWS), drawn)
    with pytest.raises(FedSimError):  # at once, or from a holder elsewhere with its next answer
        descend_and_ask(holder, torch.ones_like(drawn))


def test_trees_see_the_embedding_of_every_partner(world, tmp_path):
    world.open(tmp_path / "one")
    found = world.partners.embedded()
    np.testing.assert_array_equal(found.rows[found.neighbours.partner], EMBEDDING[PARTY.neighbours.partner])
    np.testing.assert_array_equal(found.neighbours.similarity, PARTY.neighbours.similarity)


def test_finishing_twice_changes_nothing(world, tmp_path):
    holder = world.open(tmp_path / "one")
    take_step(holder, 0)
    for _ in range(2):
        world.partners.finish()
    assert len({id(party) for party in world.saved}) <= 1
