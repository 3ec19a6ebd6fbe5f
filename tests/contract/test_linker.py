"""What every linker must keep, wherever it finds the partners; add yours to ``LINKERS`` and it is held to all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fedsim.errors import FedSimError
from fedsim.linkage import get_metric
from fedsim.linkage.direct import NumberTokens, TokenField, TokenSchema, oprf
from fedsim.linkage.direct.encrypted_table import build_table
from fedsim.linkage.direct.exchange import TokenValues
from fedsim.linkage.direct.groups import AVERAGES
from fedsim.linkage.private_linkage import LinkageConfig, load_linkage_state, pseudonym_order, save_linkage_state
from fedsim.pipeline.direct_linker import DirectLinker, FittedDirect
from fedsim.pipeline.linker import FilterLinker, Linker, LocalLinker
from fedsim.pipeline.party_table import PartyData
from fedsim.protocol.roles.coordinator_role import Coordinator, LinkLimits
from fedsim.protocol.roles.secondary_role import fetch_row_mapping
from fedsim.protocol.session import abort_session
from fedsim.protocol.transport import offer_digest
from fedsim.runtime.linking import CoordinatorLinker, stored_links
from fedsim.runtime.party_context import ReconnectingPeer
from fedsim.runtime.run_store import RunStore
from fedsim.types import AnyArray, EncodedTable, Features
from job_fixtures import lay_out, read_all
from reference_distances import hamming, levenshtein, nearest
from session_fixtures import CITY, NOTARY, RENTALS, connected, joined, started

K, SECRET = 5, bytes(range(32))
TRAINING = np.arange(0, 60, 2)
WORDS = ["ada", "adam", "bo", "bob", "cleo", "clea", "dan", "dana", "eve", "evan"]


@dataclass(eq=False)
class World:
    """A linker, what it links, and what a slow search finds in its place.

    ``candidates`` are in the order that breaks ties, and ``partner`` is how the linker names each of them. ``restart``
    gives the linker as a later process has it.
    """

    linker: Linker[Any, Any]
    records: Any
    restart: Callable[[], Linker[Any, Any]]
    queries: Any
    candidates: Any
    partner: AnyArray
    distance: Callable[[Any, Any], float]

    def some(self, rows: AnyArray) -> Any:
        """Some of the records."""
        if isinstance(self.records, PartyData):
            return self.records.take(rows)
        if isinstance(self.records, EncodedTable):
            return replace(self.records, bits=self.records.bits[rows])
        return self.records[rows]


def names(n: int, seed: int) -> pl.DataFrame:
    return pl.DataFrame({"name": np.random.default_rng(seed).choice(WORDS, n).tolist()})


@contextmanager
def local(folder: Path, *, noise: float = 0.0, k: int = K) -> Iterator[World]:
    ours, theirs = names(60, 0), names(40, 1)
    linker = LocalLinker("rentals", theirs, get_metric("levenshtein"), k, seed=3, sigma=noise)

    def restart() -> LocalLinker:
        return LocalLinker.restore("rentals", theirs, linker.state(), seed=3)

    sides = ours["name"].to_list(), theirs["name"].to_list()
    yield World(linker, ours, restart, *sides, np.arange(40), levenshtein)


def filters(n: int, seed: int) -> EncodedTable:
    ones = np.random.default_rng(seed).integers(0, 2, (n, 12), dtype=np.uint8)
    return EncodedTable(np.packbits(ones, axis=1), 12, "ab" * 32)


@contextmanager
def filtered(folder: Path, *, noise: float = 0.0, k: int = K) -> Iterator[World]:
    ours, theirs = filters(60, 0), filters(40, 1)
    linker = FilterLinker("rentals", theirs, LinkageConfig("hamming", k, sigma=noise), SECRET)

    def restart() -> FilterLinker:
        save_linkage_state(linker.fitted, folder / "linked")
        return replace(linker, fitted=load_linkage_state(folder / "linked"))

    order = pseudonym_order(SECRET, "rentals", theirs)
    yield World(linker, ours, restart, list(ours.bits), list(theirs.bits[order]), order, hamming)


@contextmanager
def coordinated(folder: Path, *, noise: float = 0.0, k: int = K) -> Iterator[World]:
    (folder / "files").mkdir()
    lay_out(folder / "files", {"job": {"tau = 0.05": f"sigma = {noise}" if noise else ""}}, flats=60)
    job, files = read_all(folder / "files")
    ours, theirs = (PartyData.read(job, files[name]) for name in ("city", "rentals"))
    theirs = theirs.take(np.arange(40))
    stores = [RunStore(folder / name, job) for name in ("city", "rentals")]
    for store in stores:
        store.folder.mkdir()
    encoded = [store.encoded(table, "rentals") for store, table in zip(stores, (ours, theirs), strict=True)]
    terms = replace(job.secondaries["rentals"].linkage, k=k)
    coordinator = Coordinator({"rentals": terms}, SECRET, folder / "lists", limits=LinkLimits(100, 100))
    with ExitStack() as stack:
        sessions = {party: stack.enter_context(connected(NOTARY, party)) for party in (CITY, RENTALS)}
        threads = [started(serve, coordinator, there) for there, _ in sessions.values()]
        asking = sessions[RENTALS][1], encoded[1], offer_digest(encoded[1]), "", terms
        threads.append(started(quietly, fetch_row_mapping, *asking))

        def restart() -> CoordinatorLinker:
            return CoordinatorLinker(RunStore(folder / "city", job), "rentals", ReconnectingPeer(lambda: city))

        city = sessions[CITY][1]
        linker, order = restart(), pseudonym_order(SECRET, "rentals", encoded[1])
        sides = list(encoded[0].bits), list(encoded[1].bits[order])
        yield World(linker, ours, restart, *sides, np.arange(40), hamming)
    joined(*threads)


@contextmanager
def direct(folder: Path, *, noise: float = 0.0, k: int = K) -> Iterator[World]:  # its similarities have no noise
    rng = np.random.default_rng(0)
    ours, theirs = (pl.DataFrame({"age": rng.integers(0, 90, n)}) for n in (60, 40))
    schema, key = TokenSchema((TokenField(("age",), NumberTokens(width=1.0)),)), oprf.SecretKey.generate()
    table = build_table(schema, theirs, np.arange(40, dtype=np.float32)[:, np.newaxis], key)

    def linker_of(partners: int, fitted: FittedDirect | None = None) -> DirectLinker:
        values = TokenValues(schema, key.public, folder / "values")
        ask = partial(oprf.map_batches, key.evaluate_blinded)
        return DirectLinker("rentals", table, partners, values, ask, fitted, earlier.vectors if fitted else {})

    def restart() -> DirectLinker:
        linker.fitted.save(folder / "fitted")
        return linker_of(k, FittedDirect.load(folder / "fitted", "rentals"))

    earlier, linker = linker_of(K), linker_of(k)
    earlier.link(ours, TRAINING)
    order = earlier.vectors_of(np.arange(40))[:, 0].astype(np.int64)  # the vector of a row is its number
    sides = ours["age"].to_list(), theirs["age"].to_numpy()[order].tolist()
    yield World(linker, ours, restart, *sides, np.arange(40), from_the_middle)


@contextmanager
def averaged(folder: Path, *, noise: float = 0.0, k: int = K) -> Iterator[World]:
    """The entries of the table are bins of at least five rows, so the linker's candidates are their middles."""
    rng = np.random.default_rng(0)
    ours, theirs = (pl.DataFrame({"age": rng.integers(0, 90, n)}) for n in (60, 200))
    schema = TokenSchema((TokenField(("age",), NumberTokens(width=1.0, reach=8)),))
    fields, key = schema.row_tokens(theirs), oprf.SecretKey.generate()
    grouping = AVERAGES.group(fields, Features(np.zeros((200, 1))), 5)
    listing = AVERAGES.list(schema, fields, grouping)
    n = len(listing.group)
    table = build_table(schema, listing.tokens, np.arange(n, dtype=np.float32)[:, np.newaxis], key)
    ask = partial(oprf.map_batches, key.evaluate_blinded)
    linker = DirectLinker("rentals", table, k, TokenValues(schema, key.public, folder / "values"), ask)

    def restart() -> DirectLinker:
        linker.fitted.save(folder / "fitted")
        fitted = FittedDirect.load(folder / "fitted", "rentals")
        return replace(linker, fitted=fitted, vectors=dict(linker.vectors))

    every = replace(linker, vectors={})
    every.link(ours, TRAINING)
    order = every.vectors_of(np.arange(n))[:, 0].astype(np.int64)
    sides = ours["age"].to_list(), middles_by_definition(theirs["age"].to_numpy(), listing.place)[order].tolist()
    yield World(linker, ours, restart, *sides, np.arange(n), from_the_middle)


def middles_by_definition(ages: AnyArray, place: AnyArray) -> AnyArray:
    """Return the middle of the widest bin of whose rows all are in a group, and all of the group in it, by group."""
    middles = np.zeros(place.max() + 1, np.int64)
    for one in range(len(middles)):
        rows = place == one
        for level in range(16):
            bins = ages >> level
            if set(bins[rows]) == set(bins[rows][:1]) and not (bins == bins[rows][0])[(place >= 0) & ~rows].any():
                middles[one] = (bins[rows][0] << level) + (1 << level >> 1)
                break
    return middles


def from_the_middle(number: float, other: float) -> float:
    """Return one minus the similarity of a number and another's bin of width 1."""
    return 1.0 - 8.0 / (8.0 + abs(other + 0.5 - number))


def serve(coordinator: Coordinator, session: Any) -> None:
    try:
        coordinator.serve(session)
    except FedSimError as error:
        abort_session(session, error)


def quietly(work: Callable[..., Any], *given: Any) -> None:
    try:
        work(*given)
    except FedSimError:
        return


LINKERS = {
    "local": local,
    "filters in this process": filtered,
    "coordinator": coordinated,
    "direct": direct,
    "averages": averaged,
}


@pytest.fixture(params=LINKERS.values(), ids=LINKERS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., World]]:
    with ExitStack() as stack:
        yield lambda **terms: stack.enter_context(request.param(tmp_path, **terms))


def test_partners_are_the_nearest_of_all_and_ties_go_to_the_first_candidate(opened):
    world = opened()
    found = world.linker.link(world.records, TRAINING)
    rows, distance = nearest(world.queries, world.candidates, world.distance, K)
    np.testing.assert_array_equal(found.partner, world.partner[rows])
    assert found.similarity.shape == (60, K, 1)
    assert any(len(set(each)) < K for each in np.asarray(distance).tolist())  # there are ties


def test_similarity_is_distance_scaled_by_the_training_records(opened):
    world = opened()
    found = world.linker.link(world.records, TRAINING)
    _, distance = nearest(world.queries, world.candidates, world.distance, K)
    near = -np.asarray(distance, np.float64)
    expected = (near - near[TRAINING].mean()) / near[TRAINING].std()
    np.testing.assert_allclose(found.overall, expected, atol=1e-5)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_linking_again_gives_the_same_links(opened, noise):
    world = opened(noise=noise)
    first = world.linker.link(world.records, TRAINING)
    again = world.restart().link(world.records, TRAINING)
    np.testing.assert_array_equal(again.partner, first.partner)
    np.testing.assert_array_equal(again.similarity, first.similarity)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_new_records_are_linked_as_the_same_records_in_training_also_after_a_restart(opened, noise):
    world, rows = opened(noise=noise), np.array([7, 3, 7])
    trained = world.linker.link(world.records, TRAINING)
    for linker in (world.linker, world.restart()):
        new = linker.link_new(linker.encode_new(world.some(rows)))
        np.testing.assert_array_equal(new.partner, trained.partner[rows])
        np.testing.assert_array_equal(new.overall.astype(np.float32), trained.overall[rows].astype(np.float32))


def test_fewer_candidates_than_partners_are_filled_up_or_an_error_that_names_both(opened):
    world = opened(k=41)
    if isinstance(world.linker, DirectLinker):
        filled = world.linker.link(world.records, TRAINING).partner[:, len(world.partner) :]
        assert (filled == len(world.partner)).all()
        return
    with pytest.raises(FedSimError) as caught:
        world.linker.link(world.records, TRAINING)
    assert caught.value.code in ("k-too-large", "peer-stopped")  # of the linker itself, or as its peer reports it
    assert "k=41" in str(caught.value)
    assert "40" in str(caught.value)


def test_new_records_before_those_of_training_are_an_error(opened):
    world = opened()
    with pytest.raises(FedSimError) as caught:
        world.linker.link_new(world.linker.encode_new(world.some(np.arange(3))))
    assert caught.value.code in ("not-linked", "not-trained")


def test_links_of_a_job_stay_in_its_run_folder(tmp_path):
    with coordinated(tmp_path) as world:
        found = world.linker.link(world.records, TRAINING)
    np.testing.assert_array_equal(stored_links(world.linker.store, "rentals").partner, found.partner)
