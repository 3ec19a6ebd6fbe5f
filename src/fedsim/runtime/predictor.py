"""Predict new records with all parties online, or with the primary's solo model while a partner is unreachable.

Every prediction says which model made it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import is_
from typing import Any

import numpy as np
import polars as pl
import torch

from fedsim.config.job import Job
from fedsim.config.party_file import resolve_columns
from fedsim.data.features import FeaturePreprocessor, name_trigrams
from fedsim.errors import AwayError, InputError, PeerError
from fedsim.pipeline.fitted_model import FittedModel, LinkedInputs, PartnerInputs
from fedsim.pipeline.party_table import PartyData
from fedsim.protocol.messages import Party, Phase, Role
from fedsim.protocol.session import PeerRestarted, Session
from fedsim.registry import METHODS
from fedsim.runs.run_folder import TRAINED_MODEL
from fedsim.runtime.linking import open_linking
from fedsim.runtime.party_context import PartyContext, ReconnectingPeer
from fedsim.runtime.primary import SOLO_MODEL, TREES_MODEL, training_config
from fedsim.runtime.run_store import RunStore
from fedsim.splitnn import Features
from fedsim.splitnn.secondary_model import AbsentSecondary, Secondary
from fedsim.training import Model, NeighbourList, explain, restore_model
from fedsim.training.boosted_trees import StackedTrees
from fedsim.training.data import target_from_state
from fedsim.types import Explanation, Floats, Floats32, Links

log = logging.getLogger("fedsim.parties")

POLL_SECONDS = 0.05
DIAL_INTERVAL_SECONDS = 2.0
SINGLE_TRY_SECONDS = 0.1  # for a coordinator that has been unreachable longer than we wait


@dataclass(frozen=True, eq=False)
class Predictions:
    """Numbers (n,) with intervals (n, 2), or classes with their probabilities (n, classes); ``by`` names the model."""

    values: list[Any]
    probabilities: Floats | None
    classes: tuple[Any, ...]
    by: str
    intervals: Floats | None = None
    away: tuple[str, ...] = ()
    reason: str = ""  # why the solo model was used
    matches: tuple[explain.Matches, ...] = ()  # of every secondary with a match gate, if the job shows its records
    explanations: tuple[Explanation, ...] = ()  # of every record, if requested
    needed_online: Mapping[str, int] = field(default_factory=dict)
    """Without a coordinator: how many records needed each secondary online; the others were linked offline."""


@dataclass(frozen=True, eq=False)
class TrainedPrimary:
    """A trained network of the primary, with what is needed to use it."""

    weights: dict[str, torch.Tensor]
    preparation: FeaturePreprocessor
    facts: dict[str, Any]

    @classmethod
    def load(cls, store: RunStore, name: str) -> TrainedPrimary:
        weights, facts = store.load_weights(name)
        return cls(weights, FeaturePreprocessor.from_json(facts["preparation"]), facts)

    def features(self, records: pl.DataFrame, table: str) -> Features:
        preparation = replace(self.preparation, party=table)
        return preparation.apply(records.select(preparation.columns))

    def model(self, job: Job, name: str, neighbours: list[NeighbourList], method: str | None = None) -> Model:
        columns = self.preparation.without_records()
        config, target = training_config(job, method), target_from_state(self.facts["target"])
        return restore_model(config, target, columns, neighbours, self.weights, name)

    def fitted(self, model: Model, trees: StackedTrees | None = None) -> FittedModel:
        """Return a model over certain holders with the trees beside it."""
        facts = self.facts
        # Earlier releases have neither typical inputs nor factors of absence.
        return FittedModel(model, trees, facts.get("typical"), facts["classes"], facts.get("absence") or ())

    def predict(self, fitted: FittedModel, records: LinkedInputs, by: str, *, explained: bool) -> Predictions:
        """Predict, and explain where asked; partners get numbers that mean nothing outside this answer."""
        if not explained:
            return self.predictions(*fitted.predict(records), by)
        values, intervals, found = fitted.explain(records)
        return replace(self.predictions(values, intervals, by), explanations=tuple(explain.number_partners(found)))

    def predictions(self, values: Floats, intervals: Floats | None, by: str) -> Predictions:
        classes = tuple(self.facts["classes"])
        if not classes:
            return Predictions(values.tolist(), None, (), by, intervals)
        return Predictions([classes[place] for place in values.argmax(axis=1)], values, classes, by)


class Predictor:
    """Stays connected with all parties and predicts one batch at a time.

    Parameters
    ----------
    context
        The running primary, whose model is trained.
    wait_seconds
        How long to wait for a party that is not connected.
    """

    def __init__(self, context: PartyContext, *, wait_seconds: float) -> None:
        torch.set_num_threads(context.job.training.threads)
        context.connection.wait_seconds, context.connection.serves_predictions = wait_seconds, True
        store = RunStore.of(context)
        self.context = context
        self._trained = TrainedPrimary.load(store, TRAINED_MODEL)
        self._solo = TrainedPrimary.load(store, SOLO_MODEL) if store.has_weights(SOLO_MODEL) else None
        self._trees, self._texts = None, []
        if store.has_weights(TREES_MODEL):
            tensors, facts = store.load_weights(TREES_MODEL)
            self._trees, self._texts = StackedTrees.from_state(tensors, facts), facts.get("texts", [])
        self._acceptor = context.listen(context.secondaries)
        peers = {party.name: ReconnectingPeer(partial(self._accept, party)) for party in context.secondaries}
        self._linking = open_linking(context, peers, self._dial_coordinator)
        config = training_config(context.job).secondary
        self._partners = {
            name: self._linking.new_partners(name, self._wait_for, config, self._trees)
            for name in context.job.secondaries
        }
        self._absent: dict[str, Any] = {}
        self._model: tuple[Sequence[Secondary], Model] | None = None
        context.progress.enter(Phase.PREDICT.value)
        self._lock = threading.Lock()
        self._coordinator_lost: float | None = time.monotonic()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a record must have: features, and the identifiers that link it."""
        return tuple(dict.fromkeys([*self.identifiers, *self._trained.preparation.columns]))

    @property
    def identifiers(self) -> tuple[str, ...]:
        """The columns that link a record."""
        return resolve_columns(self.context.job, self.context.party_file).linking

    def online(self) -> dict[str, bool]:
        """Return which secondaries are connected now."""
        return {party.name: not self._acceptor.disconnected_seconds(party) for party in self.context.secondaries}

    @property
    def coordinator_online(self) -> bool | None:
        """Whether the coordinator is connected; None if the job has none."""
        return None if self.context.job.coordinator is None else self._linking.online

    def keep_dialling(self) -> None:
        """Reconnect to the coordinator between requests, until the party or the process ends."""
        logged = ""
        while True:
            if self.coordinator_online is False and self._lock.acquire(blocking=False):
                try:
                    self._linking.reconnect()
                    logged = ""
                except PeerError as error:
                    if str(error) != logged:
                        logged = str(error)
                        log.info("%s", error)
                except KeyboardInterrupt:  # the party is being closed
                    return
                finally:
                    self._lock.release()
            time.sleep(DIAL_INTERVAL_SECONDS)

    def predict(self, records: pl.DataFrame, called: str | None = None, *, explained: bool = False) -> Predictions:
        """Predict records that have the columns of training except the label; ``called`` names the table in errors."""
        table = called or str(self.context.party_file.party)
        prepared = self.prepare(records, table)
        found = self._predict_prepared(records, prepared, table, explained=explained)
        if self.context.telemetry:
            self.context.telemetry.predicted(len(records), found.by)
        return found

    def _predict_prepared(
        self, records: pl.DataFrame, prepared: tuple[Features, dict[str, Any]], table: str, *, explained: bool
    ) -> Predictions:
        (features, encoded), own = prepared, self.context.party_file
        with self._lock:
            try:
                names = name_trigrams(records, self._texts)
                return self._predict_together(features, names, encoded, explained=explained)
            except AwayError as error:
                if own.serving.when_partner_is_away != "solo" or self._solo is None:
                    raise
                log.warning("predicting with the solo model: %s", error)
                solo = self._solo.model(self.context.job, own.name, [], "solo")
                own_features = self._solo.features(records, table)
                records_alone = LinkedInputs(own_features, [])
                found = self._solo.predict(self._solo.fitted(solo), records_alone, "solo", explained=explained)
                offline = [name for name, online in self.online().items() if not online]
                if not offline and not self._linking.online:  # it is used only when all others are connected
                    offline = [self.context.job.hub.name]
                return replace(found, away=tuple(offline), reason=str(error))

    def prepare(self, records: pl.DataFrame, table: str) -> tuple[Features, dict[str, Any]]:
        """Return records as inputs of the network, and encoded for every secondary; an invalid cell is an error."""
        job, own = self.context.job, self.context.party_file
        if not len(records):
            raise InputError("there are no records to predict; give at least one", code="no-records")
        missing = [column for column in self.columns if column not in records.columns]
        if missing:
            message = f"{table}: column '{missing[0]}', which was used in training, is missing; add it"
            raise InputError(message, code="missing-column", column=missing[0])
        features = self._trained.features(records, table)
        data = PartyData(records, resolve_columns(job, own), own, job, table)
        return features, {name: linker.encode_new(data) for name, linker in self._linking.linkers.items()}

    def _predict_together(
        self, features: Features, names: Floats32, encoded: Mapping[str, Any], *, explained: bool
    ) -> Predictions:
        needing = self._linking.needing_partner(encoded)  # before they are linked: then all tokens are known
        while True:
            try:
                partners, absent = self._link(encoded, len(features))
                missing = tuple(name for name, holders in absent.items() if holders)
                away = tuple(
                    one.name for one in self.context.secondaries if any(one.name in all for all in absent.values())
                )
                method = self.context.job.training.method
                if self._trees is None:  # stacked trees without weight are dropped: the network predicts by itself
                    method = METHODS.name_of(METHODS[method]) or method
                lists, embedded = [one.links for one in partners.values()], [one.embedded for one in partners.values()]
                model = self._model_over([holder for one in partners.values() for holder in one.holders])
                records = LinkedInputs(features, lists, names, embedded, missing)
                found = self._trained.predict(
                    self._trained.fitted(model, self._trees), records, method, explained=explained
                )
                matches = tuple(one for one in explain.find_matches(model, lists) if one.party not in missing)
                reason = f"predicted without {', '.join(away)}" if away else ""
                linked = {name: count for name, count in needing.items() if name not in missing}
                return replace(found, matches=matches, away=away, reason=reason, needed_online=linked)
            except PeerRestarted as restarted:
                connection, text = self.context.connection, "%s; repeating the request"
                connection.log_peer_event("restarted", restarted.peer, logging.INFO, text, restarted)

    def _link(
        self, encoded: Mapping[str, Any], n_records: int
    ) -> tuple[dict[str, PartnerInputs], dict[str, tuple[str, ...]]]:
        """Link new records; return the partners in every list, and the holders for whose absence a list is missing."""
        absent = {name: partners.absent(encoded[name]) for name, partners in self._partners.items()}
        linked: dict[str, PartnerInputs] = {}
        for name, queries in encoded.items():
            found = None if absent[name] else self._partners[name].inputs(self._linking.linkers[name].link_new(queries))
            if found is None:
                absent[name] = absent[name] or (name,)
            linked[name] = found or self._without_partners(name, n_records)
        return linked, absent

    def _wait_for(self, names: Iterable[str]) -> tuple[str, ...]:
        """Wait for secondaries that disconnected just now, but not again for those that have long been gone.

        Returns those that are away, if the model and the party file allow predicting without them.
        """
        connection, missing = self.context.connection, []
        for party in (one for one in self.context.secondaries if one.name in names):
            while away := self._acceptor.disconnected_seconds(party):
                connection.stop_signal.check()
                if away > connection.wait_seconds:
                    if self._goes_on_without_partners:
                        missing.append(party.name)
                        break
                    raise self._away_error(party, away)
                time.sleep(POLL_SECONDS)
        return tuple(missing)

    def _away_error(self, party: Party, seconds: float) -> AwayError:
        last = self._acceptor.last_session(party)
        lost = f"has been disconnected for {seconds:,.0f}" if last else f"did not connect within {seconds:,.0f}"
        hint = "its owner must start it with --stay"
        if self._trained.facts.get("party_dropout"):
            hint += ', or set serving.when_partner_is_away = "others" to predict without it'
        if last and getattr(last.end_reason, "code", "") == "peer-stopped":
            lost, hint = f"is away: {last.end_reason}; it {lost}", "its owner must solve that and start it with --stay"
        return AwayError(f"{party} {lost} seconds; {hint}", code="peer-away", joined=last is not None)

    @property
    def _goes_on_without_partners(self) -> bool:
        allowed = self.context.party_file.serving.when_partner_is_away == "others"
        return allowed and bool(self._trained.facts.get("party_dropout"))

    def _without_partners(self, name: str, n_records: int) -> PartnerInputs:
        """Return what the model takes in place of a list that is missing, and does not look at."""
        job, terms = self.context.job, self.context.job.secondaries[name]
        links = Links(np.zeros((n_records, terms.k), int), np.zeros((n_records, terms.k, terms.n_similarities)))
        if name not in self._absent:
            network: Any = training_config(job).secondary.local
            self._absent[name] = AbsentSecondary(name, network.cut, terms.k)
        return PartnerInputs(links, (self._absent[name],))

    def _model_over(self, holders: Sequence[Secondary]) -> Model:
        """Return the model over these holders of all lists; it is rebuilt only if one of them is new."""
        if self._model is None or not all(map(is_, holders, self._model[0])):
            job = self.context.job
            neighbours = [
                NeighbourList(Links.without_records(terms.k, terms.n_similarities), (holder,))
                for terms, holder in zip(job.secondaries.values(), holders, strict=True)
            ]
            self._model = holders, self._trained.model(job, self.context.party_file.name, neighbours)
        return self._model[1]

    def _dial_coordinator(self) -> Session:
        now = time.monotonic()
        self._coordinator_lost = self._coordinator_lost or now
        left = self.context.connection.wait_seconds - (now - self._coordinator_lost)
        session = self.context.dial(Role.COORDINATOR, max(SINGLE_TRY_SECONDS, left))
        session.phase, self._coordinator_lost = Phase.PREDICT, None
        return session

    def _accept(self, party: Party) -> Session:
        session = self._acceptor.session_with(party)
        session.phase = Phase.PREDICT
        return session
