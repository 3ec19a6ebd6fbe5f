"""Predict new records with the parties online, or with the primary's solo model while a partner is away.

A record is predicted by the whole model or, where a partner is away and the primary's owner chose so, by the solo
network that was trained beside it; every prediction says which.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from fedsim.config.party_file import identifier_columns
from fedsim.data.features import FeaturePreprocessor
from fedsim.errors import AwayError, InputError, PeerError
from fedsim.protocol.cut_layer import wire_format
from fedsim.protocol.handshake import SessionAcceptor
from fedsim.protocol.messages import Party, Phase, Role
from fedsim.protocol.roles.primary import RemoteSecondary, fetch_new_partners
from fedsim.protocol.session import PeerRestarted, Session
from fedsim.runtime.party_context import PartyContext, ReconnectingPeer
from fedsim.runtime.party_data import encode_identifiers
from fedsim.runtime.primary import SOLO_MODEL, to_features, training_config
from fedsim.runtime.run_store import TRAINED_MODEL, RunStore
from fedsim.splitnn.gates import Neighbours
from fedsim.splitnn.layers import Features
from fedsim.training import Model, NeighbourList
from fedsim.training.labels import target_from_state
from fedsim.training.model import restore_model
from fedsim.types import EncodedTable, Floats

log = logging.getLogger("fedsim.parties")

POLL_SECONDS = 0.05
DIAL_INTERVAL_SECONDS = 2.0
SINGLE_TRY_SECONDS = 0.1  # seconds, for a coordinator that has been away longer than we wait


@dataclass(frozen=True, eq=False)
class Predictions:
    """Numbers (n,), or classes with their probabilities (n, classes); ``by`` is the model that was asked."""

    values: list[Any]
    probabilities: Floats | None
    classes: tuple[Any, ...]
    by: str
    away: tuple[str, ...] = ()
    reason: str = ""  # why not by all together


@dataclass(frozen=True, eq=False)
class _TrainedPrimary:
    """A trained network of the primary with what it takes to use it."""

    weights: dict[str, torch.Tensor]
    preparation: FeaturePreprocessor
    facts: dict[str, Any]

    @classmethod
    def load(cls, keep: RunStore, what: str) -> _TrainedPrimary:
        weights, facts = keep.load_weights(what)
        return cls(weights, FeaturePreprocessor.from_json(facts["preparation"]), facts)

    def columns(self) -> Features:
        """The columns of the primary without a record in them."""
        found = self.preparation
        return Features.without_records(len(found.names), found.cardinalities, found.spread)


class Predictor:
    """Stays connected with everybody; one batch at a time."""

    def __init__(self, post: PartyContext, *, wait_seconds: float) -> None:
        torch.set_num_threads(post.job.training.threads)
        post.connection.wait_seconds, post.connection.serves_predictions = wait_seconds, True
        self.post, self._keep = post, RunStore(post.folder, post.job)
        self._trained = _TrainedPrimary.load(self._keep, TRAINED_MODEL)
        self._solo = _TrainedPrimary.load(self._keep, SOLO_MODEL) if self._keep.has_weights(SOLO_MODEL) else None
        self._reception = post.receive(post.secondaries)
        self._coordinator = ReconnectingPeer(self._dialled)
        self._secondaries = {party: _reconnecting_secondary(self._reception, party) for party in post.secondaries}
        self._built: tuple[list[Session], Model] | None = None
        self._holders: dict[str, RemoteSecondary] = {}
        self._lock = threading.Lock()
        self._lost: float | None = time.monotonic()  # since when there is no coordinator

    @property
    def columns(self) -> tuple[str, ...]:
        """What a record to predict must have: features, and the identifiers that link it."""
        return tuple(dict.fromkeys([*self.identifiers, *self._trained.preparation.columns]))

    @property
    def identifiers(self) -> tuple[str, ...]:
        """The columns that link a record."""
        job, own = self.post.job, self.post.own
        return tuple(column for name in job.secondaries for column in identifier_columns(job, own, name).values())

    def online(self) -> dict[str, bool]:
        """Which secondaries are connected just now."""
        return {party.name: not self._reception.away_seconds(party) for party in self.post.secondaries}

    @property
    def coordinator_online(self) -> bool:
        """Whether the coordinator is connected."""
        return self._coordinator.connected

    def keep_dialling(self) -> None:
        """Dial the coordinator whenever it is away and nobody asks for it, until the process ends."""
        said = ""
        while True:
            if not self.coordinator_online and self._lock.acquire(blocking=False):
                try:
                    self._coordinator.session()
                    said = ""
                except PeerError as fault:
                    if str(fault) != said:
                        said = str(fault)
                        log.info("%s", fault)
                finally:
                    self._lock.release()
            time.sleep(DIAL_INTERVAL_SECONDS)

    def predict(self, records: pl.DataFrame, called: str | None = None) -> Predictions:
        """Predict new records, whose columns are those of training without the label; all of them, or none.

        ``called`` is the name of their table in faults, where it is not the party's own.
        """
        table = called or str(self.post.own.party)
        self._check(records, table)
        features = self._features(self._trained, records, table)
        encoded = {name: self._encoded(records, name, table) for name in self.post.job.secondaries}
        with self._lock:
            try:
                return self._together(features, encoded)
            except AwayError as away:
                if self.post.own.serving.when_partner_is_away != "solo" or self._solo is None:
                    raise
                log.warning("predicting with our own features alone: %s", away)
                return self._alone(self._features(self._solo, records, table), str(away))

    def _check(self, records: pl.DataFrame, table: str) -> None:
        if not len(records):
            raise InputError("there is no record to predict; give at least one")
        missing = [column for column in self.columns if column not in records.columns]
        if missing:
            raise InputError(f"{table}: there is no column '{missing[0]}', which training had; add it")

    def _together(self, features: Features, encoded: Mapping[str, EncodedTable]) -> Predictions:
        while True:
            try:
                self._wait_for_secondaries()
                model = self._model()
                lists = [self._neighbours(name, table) for name, table in encoded.items()]
                values = model.predict(features, lists)
                return self._told(values, self._trained, self.post.job.training.method)
            except PeerRestarted as restarted:
                log.info("%s; asking again", restarted)

    def _wait_for_secondaries(self) -> None:
        """Who left a while ago is not waited for: every question would take that long."""
        for party in self.post.secondaries:
            while away := self._reception.away_seconds(party):
                self.post.connection.stop_signal.check()
                if away > self.post.connection.wait_seconds:
                    raise AwayError(f"{party} has been away for {away:.0f} seconds; its owner starts it with --stay")
                time.sleep(POLL_SECONDS)

    def _alone(self, features: Features, away: str) -> Predictions:
        if self._solo is None:
            raise AwayError(away)
        target = target_from_state(self._solo.facts["target"])
        model = restore_model(
            training_config(self.post.job, "solo"),
            target,
            self._solo.columns(),
            [],
            self._solo.weights,
            self.post.own.name,
        )
        values = model.predict(features, [])
        offline = [name for name, there in self.online().items() if not there]
        if not offline and not self._coordinator.connected:  # it is asked once all others are there
            offline = [self.post.peer(Role.COORDINATOR).name]
        return replace(self._told(values, self._solo, "solo", tuple(offline)), reason=away)

    def _encoded(self, records: pl.DataFrame, name: str, table: str) -> EncodedTable:
        job, own = self.post.job, self.post.own
        named = identifier_columns(job, own, name)
        frame = records.select(**{agreed: pl.col(column) for agreed, column in named.items()})
        return encode_identifiers(job, own, name, frame, self.post.folder, table)

    def _neighbours(self, name: str, encoded: EncodedTable) -> Neighbours:
        found = self._coordinator.ask(lambda session: fetch_new_partners(session, name, encoded))
        self._holders[name].use_partners(found)
        return Neighbours(np.array(found.partner, np.int64), np.array(found.similarity, np.float64))

    def _features(self, trained: _TrainedPrimary, records: pl.DataFrame, table: str) -> Features:
        preparation = replace(trained.preparation, party=table)
        return to_features(preparation, records.select(preparation.columns))

    def _model(self) -> Model:
        """The model over the conversations of now; it is built again only when one of them is new."""
        sessions = [reach.session() for reach in self._secondaries.values()]
        if self._built is None or self._built[0] != sessions:
            form = wire_format(self.post.job.training.wire)
            holders = [RemoteSecondary(session, form, predicting=True) for session in sessions]
            self._holders = {holder.name: holder for holder in holders}
            self._built = sessions, self._restored(holders)
        return self._built[1]

    def _restored(self, holders: Sequence[RemoteSecondary]) -> Model:
        job, trained = self.post.job, self._trained
        held = [
            NeighbourList(Neighbours.without_records(terms.k), (holder,))
            for terms, holder in zip(job.secondaries.values(), holders, strict=True)
        ]
        target = target_from_state(trained.facts["target"])
        return restore_model(training_config(job), target, trained.columns(), held, trained.weights, self.post.own.name)

    def _told(self, values: Floats, trained: _TrainedPrimary, by: str, away: tuple[str, ...] = ()) -> Predictions:
        classes = tuple(trained.facts["classes"])
        if not classes:
            return Predictions(values.tolist(), None, (), by, away)
        likeliest: NDArray[Any] = values.argmax(axis=1)
        return Predictions([classes[place] for place in likeliest], values, classes, by, away)

    def _dialled(self) -> Session:
        now = time.monotonic()
        self._lost = self._lost or now
        left = self.post.connection.wait_seconds - (now - self._lost)
        session = self.post.dial(Role.COORDINATOR, max(SINGLE_TRY_SECONDS, left))
        session.phase, self._lost = Phase.PREDICT, None
        return session


def _reconnecting_secondary(reception: SessionAcceptor, party: Party) -> ReconnectingPeer:
    def opened() -> Session:
        session = reception.session_with(party)
        session.phase = Phase.PREDICT
        return session

    return ReconnectingPeer(opened)
