"""Explanations: single predictions of any method; weight curves, matches and importances of FedSim's gates.

Letters: n records, B records of a batch, K partners of a list, F compared fields, R outputs per pair, W numbers that a
partner sends, C width of the cut layer, T outputs of the task, G points of a curve.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsim.errors import FileError, SettingError
from fedsim.splitnn import Features, gates, layers, methods
from fedsim.splitnn.secondary_model import AbsentSecondary
from fedsim.training.boosted_trees import TreeColumns
from fedsim.training.data import as_features
from fedsim.training.model import Model
from fedsim.training.primary_steps import PartnerList
from fedsim.types import Explanation, Floats, Integers, Links, PartnerEffect

INTEGRATION_STEPS = 50
EXPLAINED_RECORDS = 256  # records per batch
MIN_STEP = 1e-3  # of an output of the network, over which the slope of the decoded prediction is taken


@dataclass(frozen=True, eq=False)
class LinkedRecords:
    """Records with everything that the partners sent for them, so that no explanation requests it again.

    ``columns`` is what trees beside the network see in addition to the features.
    """

    features: Features
    lists: tuple[PartnerList, ...]
    batch: gates.Batch
    columns: TreeColumns

    def take(self, rows: Integers) -> "LinkedRecords":
        """Return some of the records."""
        places = torch.from_numpy(rows).to(self.batch.features.numbers.device)
        branches = [
            replace(one, position=one.position[places], similarity=one.similarity[places])
            for one in self.batch.branches
        ]
        lists = tuple(
            PartnerList(one.partner[rows], branch.similarity, one.holders)
            for one, branch in zip(self.lists, branches, strict=True)
        )
        absent = None if self.batch.absent is None else self.batch.absent[places]
        batch = gates.Batch(self.batch.features.take(places), branches, absent)
        return LinkedRecords(self.features.take(rows), lists, batch, self.columns.take(rows))

    def without(self, place: int) -> "LinkedRecords":
        """Return the records as they are seen while the holders of one list are away."""
        device = self.batch.features.numbers.device
        absent = torch.arange(len(self.lists), device=device).eq(place).expand(len(self.features), -1)
        known = self.batch.absent
        batch = replace(self.batch, absent=absent if known is None else absent | known)
        return replace(self, batch=batch, columns=self.columns.without(place))

    def without_all(self) -> "LinkedRecords":
        """Return the records as they are seen while the holders of all lists are away."""
        found = self
        for place in range(len(self.lists)):
            found = found.without(place)
        return found

    def chunks(self) -> "Iterator[LinkedRecords]":
        """Yield the records a few at a time."""
        for first in range(0, len(self.features), EXPLAINED_RECORDS):
            yield self.take(np.arange(first, min(first + EXPLAINED_RECORDS, len(self.features))))


def request_records(
    model: Model, features: Features | NDArray[Any], lists: Sequence[Links], columns: TreeColumns | None = None
) -> LinkedRecords:
    """Request what the partners send for these records, as in :meth:`Model.predict`."""
    features = as_features(features)
    records = model.records(features, lists)
    batch = model.primary.batch(records, np.arange(len(features)))
    return LinkedRecords(features, records.lists, batch, columns or TreeColumns.none(len(features)))


def integrated_gradients(
    function: Callable[[Sequence[Tensor]], Tensor], inputs: Sequence[Tensor], steps: int = INTEGRATION_STEPS
) -> list[Tensor]:
    """Return how much each input contributes to the outputs, against an input of zeros (Sundararajan et al., 2017).

    ``function`` maps the inputs to one number per record. The path integral is a Gauss-Legendre sum, so that the
    contributions of a record add up to its output minus that of zeros.
    """
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    totals = [torch.zeros_like(entry) for entry in inputs]
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        scaled = [(entry.detach() * node).requires_grad_() for entry in inputs]
        with torch.enable_grad():
            slopes = torch.autograd.grad(function(scaled).sum(), scaled)
        for total, slope in zip(totals, slopes, strict=True):
            total.add_(slope, alpha=float(weight))
    return [entry.detach() * total for entry, total in zip(inputs, totals, strict=True)]


def merge_contributions(network: nn.Module, batch: gates.Batch, steps: int = INTEGRATION_STEPS) -> list[Tensor]:
    """Return the contribution of each weighted output to the prediction, (B, K, R) per list, the mean over members.

    A list with a match gate has a further column, (B, K, R + 1): what the partner contributes as the match. For
    classes, the prediction is the probability of the likeliest one.
    """
    networks = _fedsim_networks(network)
    with torch.no_grad():
        likeliest = networks[0].task.predict(network(batch)).argmax(dim=1, keepdim=True)  # (B, 1)
    by_member = [_member_contributions(member, batch, likeliest, steps) for member in networks]
    return [torch.stack(parts).mean(dim=0) for parts in zip(*by_member, strict=True)]


def _member_contributions(
    network: methods.FedSimNetwork, batch: gates.Batch, likeliest: Tensor, steps: int
) -> list[Tensor]:
    with torch.no_grad():
        primary, lists = network.weighted(batch)

    def prediction(inputs: Sequence[Tensor]) -> Tensor:
        moved = []
        for weighted, entry in zip(lists, inputs, strict=True):
            outputs, taken = entry.tensor_split([weighted.outputs.shape[2]], dim=2)
            moved.append(replace(weighted, outputs=outputs, taken=None if weighted.taken is None else taken))
        return network.task.predict(network.merge(moved, primary, None)).gather(1, likeliest).squeeze(1)  # (B,)

    inputs = [
        weighted.outputs if weighted.taken is None else torch.cat([weighted.outputs, weighted.taken], dim=2)
        for weighted in lists
    ]  # each (B, K, R) or (B, K, R + W)
    found = []
    for weighted, part in zip(lists, integrated_gradients(prediction, inputs, steps), strict=True):
        outputs, taken = part.tensor_split([weighted.outputs.shape[2]], dim=2)
        whole = [outputs] if weighted.taken is None else [outputs, taken.sum(dim=2, keepdim=True)]
        found.append(torch.cat(whole, dim=2))
    return found


def _list_gates(network: nn.Module) -> list[methods.ListGates]:
    """Return the gates of every list, which all members share."""
    return [entry for entry in _fedsim_networks(network)[0].lists if isinstance(entry, methods.ListGates)]


@torch.no_grad()
def learnt_weights(list_gates: methods.ListGates, similarity: Tensor) -> Tensor:
    """Return the weight of each vector of similarities, (n, K, F) -> (n, K)."""
    weight: Tensor = list_gates.weigh(list_gates.inputs(similarity))
    return weight


@dataclass(frozen=True, eq=False)
class WeightCurve:
    """The weight that a secondary's weight gate gives to each similarity of one field, the others at their mean."""

    party: str
    similarity: Floats  # (G,)
    weight: Floats  # (G,)


@dataclass(frozen=True, eq=False)
class MergeImportance:
    """Mean absolute contribution of every weighted output to the prediction; row 0 is the least similar partner."""

    party: str
    values: Floats  # (K, R)


@dataclass(frozen=True, eq=False)
class Attribution:
    """Contributions to single records' predictions; partners are in the order of the sort gate."""

    party: str
    partner: Integers  # (n, K)
    similarity: Floats  # (n, K), the mean over the fields
    weight: Floats  # (n, K)
    values: Floats  # (n, K, R), the contribution of every weighted output; R + 1 with a match gate


@dataclass(frozen=True, eq=False)
class Matches:
    """How sure the match gate of one list is of each partner; partners are in the order of the sort gate."""

    party: str
    partner: Integers  # (n, K)
    probability: Floats  # (n, K), that the partner is the record's match

    @property
    def unmatched(self) -> Floats:
        """The probability that a record has no match in the list, (n,)."""
        rest: Floats = np.clip(1.0 - self.probability.sum(axis=1), 0.0, 1.0)
        return rest

    @property
    def taken(self) -> Integers:
        """The likeliest partner of each record, (n,), or -1 where no match is likelier."""
        best = self.probability.argmax(axis=1)[:, np.newaxis]
        sure, partner = (np.take_along_axis(array, best, axis=1)[:, 0] for array in (self.probability, self.partner))
        return np.where(sure >= self.unmatched, partner, -1)


def weight_curves(model: Model, low: float = -3.0, high: float = 3.0, points: int = 61) -> list[WeightCurve]:
    """Return the learnt weight curve of every list (paper, figure "insight", middle), or of each of its fields.

    Parameters
    ----------
    model
        A trained FedSim model.
    low, high, points
        The similarities of the curve: evenly spaced points from low to high.
    """
    similarity, curves = np.linspace(low, high, points), []
    for holders, entry in zip(model.groups, _list_gates(model.primary.model.network), strict=True):
        fields = entry.inputs.fields
        for place, name in enumerate(field_names(holders[0].name, fields)):
            vectors = torch.zeros(1, points, fields, device=model.primary.model.device)
            vectors[0, :, place] = torch.from_numpy(similarity)
            weight = learnt_weights(entry, vectors)[0].double().cpu().numpy()
            curves.append(WeightCurve(name, similarity, weight))
    return curves


def field_names(party: str, fields: int) -> list[str]:
    """Return the names of the weight curves of a list: the party, or each of its compared fields.

    >>> field_names("rentals", 1), field_names("rentals", 2)
    (['rentals'], ['rentals, field 1', 'rentals, field 2'])
    """
    return [party] if fields == 1 else [f"{party}, field {place}" for place in range(1, fields + 1)]


def find_matches(model: Model, lists: Sequence[Links]) -> list[Matches]:
    """Return which partners the match gates take for the records' matches, for every list that has such a gate.

    Parameters
    ----------
    model
        A trained model; only FedSim has match gates.
    lists
        Partners of any records, as in :meth:`Model.predict`.
    """
    return matches_of(model, model.arrange(lists, len(lists[0]))) if lists else []


def matches_of(model: Model, lists: Sequence[PartnerList]) -> list[Matches]:
    """Return the same for lists that the model has arranged."""
    network, found = model.primary.model.network, []
    if not isinstance(methods.member_networks(network)[0], methods.FedSimNetwork):
        return []
    for holders, partners, entry in zip(model.groups, lists, _list_gates(network), strict=True):
        if entry.match is not None:
            rows = partners.partner.astype(np.int64)
            found.append(Matches(holders[0].name, rows, match_probabilities(entry, partners.similarity)))
    return found


@torch.no_grad()
def match_probabilities(list_gates: methods.ListGates, similarity: Tensor) -> Floats:
    """Return the probability of the match gate that each partner is the record's match, (n, K, F) -> (n, K)."""
    found: Tensor = list_gates.match(similarity, list_gates.inputs(similarity))[:, :-1]  # type: ignore[misc]
    return np.asarray(found.double().cpu().numpy())


def merge_importance(
    model: Model, features: Features | NDArray[Any], lists: Sequence[Links], steps: int = INTEGRATION_STEPS
) -> list[MergeImportance]:
    """Return integrated gradients of the merge gate, averaged over records (paper, figure "insight", right).

    Parameters
    ----------
    model
        A trained FedSim model.
    features, lists
        Records to explain, as in :meth:`Model.predict`.
    steps
        Points of the path integral.
    """
    found = merge_attributions(model, request_records(model, features, lists), steps)
    return [MergeImportance(one.party, np.abs(one.values).mean(axis=0)) for one in found]


def merge_attributions(model: Model, records: LinkedRecords, steps: int = INTEGRATION_STEPS) -> list[Attribution]:
    """Return the contributions for each record separately; all are held in memory.

    Parameters
    ----------
    model
        A trained FedSim model.
    records
        Records to explain, from :func:`request_records`.
    steps
        Points of the path integral.
    """
    network = model.primary.model.network
    chunks = (merge_contributions(network, chunk.batch, steps) for chunk in records.chunks())
    by_list = zip(*chunks, strict=True)
    attributions = []
    for holders, partners, entry, parts in zip(model.groups, records.lists, _list_gates(network), by_list, strict=True):
        attributions.append(
            Attribution(
                holders[0].name,
                partners.partner.astype(np.int64),
                partners.similarity.double().nanmean(dim=2).cpu().numpy(),
                learnt_weights(entry, partners.similarity).double().cpu().numpy(),
                torch.cat(parts).double().cpu().numpy(),
            )
        )
    return attributions


def _fedsim_networks(network: nn.Module) -> list[methods.FedSimNetwork]:
    """Return the members of a FedSim network."""
    members = [member for member in methods.member_networks(network) if isinstance(member, methods.FedSimNetwork)]
    if not members:
        raise SettingError("only the method fedsim has gates to explain; train FedSim", code="no-gates")
    return members


# Single predictions
#
# All is computed at the primary from what the partners send for a prediction anyway. A partner record is compared with
# an average one, of which every number that crosses the cut is the mean over known records; links and similarities stay
# as they are. Integrated gradients along the way from average to actual records give effects that add up.


@dataclass(frozen=True, eq=False)
class TypicalInputs:
    """What a prediction is compared with: the primary's typical record, and what an average partner record sends."""

    record: Features  # one record
    sent: tuple[tuple[Tensor, ...], ...]  # by list and holder, each (C,)
    places: Mapping[str, tuple[Sequence[int], Sequence[int]]]  # of the table's columns among numbers and codes
    names: Mapping[str, Sequence[float]] = field(default_factory=dict)  # mean counts of trigrams that trees see

    def state(self) -> dict[str, Any]:
        """Return it as JSON values, for :func:`typical_from_state`."""
        return {
            "numbers": self.record.numbers[0].tolist(),
            "codes": self.record.codes[0].tolist(),
            "sent": [[part.tolist() for part in parts] for parts in self.sent],
            "places": {column: [list(part) for part in places] for column, places in self.places.items()},
            "names": {column: list(counts) for column, counts in self.names.items()},
        }


def typical_from_state(state: Mapping[str, Any] | None) -> TypicalInputs:
    """Return what :meth:`TypicalInputs.state` described."""
    if state is None:
        message = "this model was saved by an earlier release, which explained no predictions; train it again"
        raise FileError(message, code="no-explanations")
    sent = tuple(tuple(torch.tensor(part) for part in parts) for parts in state["sent"])
    record = Features(np.array([state["numbers"]]), np.array([state["codes"]], dtype=np.int64))
    return TypicalInputs(record, sent, state["places"], state.get("names", {}))  # earlier releases have no names


def average_sent(records: LinkedRecords) -> tuple[tuple[Tensor, ...], ...]:
    """Return the mean of what the distinct partner records of these records sent, (C,) by list and holder."""
    found = []
    for one, branch in zip(records.lists, records.batch.branches, strict=True):
        rows = branch.position[torch.from_numpy(one.partner >= 0)].unique()  # without the row of zeros of gaps
        found.append(tuple(part[rows].mean(dim=0).cpu() for part in branch.activations))
    return tuple(found)


def predict_records(model: Model, records: LinkedRecords) -> tuple[Floats, Floats | None]:
    """Predict as :meth:`Model.predict_with_intervals` does, without a further request."""
    found = [_network_outputs(model, chunk) for chunk in records.chunks()]
    ends = [part for _, part in found if part is not None]
    values = model.target.decode_predictions(np.concatenate([outputs for outputs, _ in found]))
    return values, np.concatenate(ends) if ends else None


@torch.no_grad()
def _network_outputs(model: Model, records: LinkedRecords) -> tuple[Floats, Floats | None]:
    """Return the network's outputs, (n, T), and the ends of the intervals, (n, 2)."""
    scores = model.primary.model.network(records.batch)
    outputs = np.asarray(model.primary.task.predict(scores).double().cpu().numpy())
    return outputs, model.target.decode_intervals(outputs, model.primary.spread(scores))


Combine = Callable[[Floats, Floats | None, Features, TreeColumns], tuple[Floats, Floats | None]]


def explain_records(
    model: Model,
    records: LinkedRecords,
    typical: TypicalInputs,
    *,
    combine: Combine | None = None,
    classes: Sequence[Any] = (),
    steps: int = INTEGRATION_STEPS,
) -> list[Explanation]:
    """Explain the prediction of every record.

    Parameters
    ----------
    model
        A trained model of any method.
    records
        Records to explain, from :func:`request_records`.
    typical
        What they are compared with.
    combine
        Turns predictions of the network, with intervals, into those of the model, for records with these features and
        these columns beside them. What it adds is shared among single partners as the network's prediction is.
    classes
        The classes, where the label is one.
    steps
        Points of the path integral.
    """
    explainer = _Explainer(model, typical, combine or (lambda values, ends, *_: (values, ends)), tuple(classes), steps)
    return [found for chunk in records.chunks() for found in explainer.explain(chunk)]


def number_partners(explanations: Sequence[Explanation]) -> list[Explanation]:
    """Replace the rows of partners by numbers that count from one per secondary and mean nothing elsewhere."""
    numbers: defaultdict[str, defaultdict[int, int]] = defaultdict(lambda: defaultdict(count(1).__next__))
    return [
        replace(one, partners=[replace(p, partner=numbers[p.secondary][p.partner]) for p in one.partners])
        for one in explanations
    ]


@dataclass(frozen=True, eq=False)
class _Explainer:
    """Explains records a few at a time; ``chosen`` is the predicted class of every record, None for numbers."""

    model: Model
    typical: TypicalInputs
    combine: Combine
    classes: tuple[Any, ...]
    steps: int

    def explain(self, records: LinkedRecords) -> Iterator[Explanation]:
        batch, features, target = records.batch, records.features, self.model.target
        outputs, ends = _network_outputs(self.model, records)
        predicted, ends = self.combine(target.decode_predictions(outputs), ends, features, records.columns)
        chosen = predicted.argmax(axis=1) if self.classes else None
        value = self._value(outputs, records, chosen)
        actual = [_by_pair(branch) for branch in batch.branches]
        names = [" and ".join(holder.name for holder in holders) for holders in self.model.groups]
        average, averaged = list(actual), records.columns
        for place in range(len(names)):
            average[place] = self._average(place, records.lists[place], actual[place])
            averaged = averaged.with_average(slice(place, place + 1))
        base, base_records = self._outputs(replace(batch, branches=average)), replace(records, columns=averaged)
        without = {}
        for place, name in enumerate(names):
            branches = [*actual[:place], average[place], *actual[place + 1 :]]
            columns = records.columns.with_average(slice(place, place + 1))
            left = replace(records, batch=replace(batch, branches=branches), columns=columns)
            if self.model.config.party_dropout:  # the model has learnt to do without it
                left = records.without(place)
            without[name] = self._value(self._outputs(left.batch), left, chosen)
        slope, base_value = self._slope(base, outputs, records, chosen), self._value(base, base_records, chosen)
        raw = self._integrate(batch, average, actual, chosen)
        present = [not isinstance(one.holders[0], AbsentSecondary) for one in records.lists]
        effects = _add_up([slope[:, None] * part for part in raw], value - base_value, present)
        own = self._columns(records, value, chosen)
        partners = [
            _partner_effects(name, one, gate, effect)
            for name, one, gate, effect in zip(names, records.lists, self._gates(), effects, strict=True)
        ]
        for place in range(len(features)):
            yield Explanation(
                prediction=float(value[place]) if chosen is None else self.classes[chosen[place]],
                value=float(value[place]),
                average=float(base_value[place]),
                partners=sorted((one for part in partners for one in part[place]), key=lambda one: -abs(one.effect)),
                without={name: float(left[place]) for name, left in without.items()},
                columns=_largest_first({name: float(effect[place]) for name, effect in own.items()}),
                lower=None if ends is None else float(ends[place, 0]),
                upper=None if ends is None else float(ends[place, 1]),
                away=bool(self.model.config.party_dropout),
            )

    @torch.no_grad()
    def _outputs(self, batch: gates.Batch) -> Floats:
        found = self.model.primary.task.predict(self.model.primary.model.network(batch))
        return np.asarray(found.double().cpu().numpy())

    def _value(self, outputs: Floats, records: LinkedRecords, chosen: Integers | None) -> Floats:
        """Return the predicted number, or the probability of the chosen class, that outputs (n, T) stand for."""
        values = self.model.target.decode_predictions(outputs)
        found, _ = self.combine(values, None, records.features, records.columns)
        return found if chosen is None else np.take_along_axis(found, chosen[:, None], axis=1)[:, 0]

    def _average(self, place: int, one: PartnerList, branch: gates.Branch) -> gates.Branch:
        """Return a list whose partner records are average ones; gaps stay gaps."""
        present = torch.from_numpy(one.partner >= 0).to(branch.position.device).flatten()[:, None]
        sent = [mean.to(present.device) for mean in self.typical.sent[place]]
        return replace(branch, activations=tuple(torch.where(present, mean, 0.0) for mean in sent))

    def _places(self, outputs: int, chosen: Integers | None, n: int) -> Integers:
        """Return which output decides the value: the only one, or that of the class, (n, 1)."""
        return np.zeros((n, 1), np.int64) if outputs == 1 or chosen is None else chosen[:, None]

    def _slope(self, base: Floats, outputs: Floats, records: LinkedRecords, chosen: Integers | None) -> Floats:
        """Return how much the value changes with the output between two predictions, (n,); it may be a logarithm."""
        at = self._places(outputs.shape[1], chosen, len(outputs))
        first, last = (np.take_along_axis(found, at, axis=1) for found in (base, outputs))
        middle, half = (first + last) / 2, np.maximum(np.abs(last - first), MIN_STEP) / 2
        ends = []
        for sign in (-1, 1):
            moved = outputs.copy()
            np.put_along_axis(moved, at, middle + sign * half, axis=1)
            ends.append(self._value(moved, records, chosen))
        return np.asarray((ends[1] - ends[0]) / (2 * half[:, 0]))

    def _integrate(
        self, batch: gates.Batch, average: list[gates.Branch], actual: list[gates.Branch], chosen: Integers | None
    ) -> list[Floats]:
        """Return the integrated gradients of the output by pair, (n, K) per list, from average to actual records."""
        network, task = self.model.primary.model.network, self.model.primary.task
        numbers = batch.features.numbers
        at = torch.from_numpy(self._places(task.outputs, chosen, len(numbers))).to(numbers.device)

        def output(moves: Sequence[Tensor]) -> Tensor:
            rest = iter(moves)
            moved = [replace(one, activations=tuple(part + next(rest) for part in one.activations)) for one in average]
            return task.predict(network(replace(batch, branches=moved))).gather(1, at).squeeze(1)  # (B,)

        moves = [
            there - here
            for first, last in zip(average, actual, strict=True)
            for here, there in zip(first.activations, last.activations, strict=True)
        ]  # (B * K, C) per list and holder
        parts = iter(integrated_gradients(output, moves, self.steps) if moves else [])
        by_pair = [
            torch.stack([next(parts).sum(dim=1) for _ in one.activations]).sum(dim=0).reshape(one.position.shape)
            for one in actual
        ]
        return [part.double().cpu().numpy() for part in by_pair]

    def _columns(self, records: LinkedRecords, value: Floats, chosen: Integers | None) -> dict[str, Floats]:
        """Return by how much the value is greater than with the typical cell of each column, (n,).

        A name that trees see is replaced by the mean counts of its trigrams.
        """
        own, typical, found = records.features, self.typical.record, {}
        places, names = self.typical.places, self.typical.names
        firsts = dict(zip(names, accumulate((len(counts) for counts in names.values()), initial=0), strict=False))
        for column in dict.fromkeys([*places, *names]):
            numbers, codes = places.get(column, ((), ()))
            changed = replace(own, numbers=own.numbers.copy(), codes=own.codes.copy())
            changed.numbers[:, list(numbers)] = typical.numbers[:, list(numbers)]
            changed.codes[:, list(codes)] = typical.codes[:, list(codes)]
            tensors = layers.FeatureTensors.of(changed, self.model.primary.model.device)
            outputs = self._outputs(replace(records.batch, features=tensors))
            beside = records.columns
            if column in names:
                beside = beside.with_names(firsts[column], names[column])
            found[column] = value - self._value(outputs, replace(records, features=changed, columns=beside), chosen)
        return found

    def _gates(self) -> list[methods.ListGates | None]:
        network = self.model.primary.model.network
        fedsim = isinstance(methods.member_networks(network)[0], methods.FedSimNetwork)
        return list(_list_gates(network)) if fedsim else [None] * len(self.model.groups)


def _by_pair(branch: gates.Branch) -> gates.Branch:
    """Return the same list with a row of its own for every pair, (U, C) -> (B * K, C)."""
    pairs = branch.position.flatten()
    position = torch.arange(len(pairs), device=pairs.device).reshape(branch.position.shape)
    return replace(branch, activations=tuple(part[pairs] for part in branch.activations), position=position)


def _add_up(effects: list[Floats], total: Floats, present: Sequence[bool]) -> list[Floats]:
    """Spread the rest over the effects in proportion to their size, so that they add up to the total, (n,).

    The rest is the error of the numeric integration, and what trees see of the partners. If the network has no weight,
    all effects are zero and get equal shares, except in lists whose holder is not ``present``.
    """
    rest = total - sum((part.sum(axis=1) for part in effects), start=np.zeros(len(total)))
    sizes = [np.abs(part) for part in effects]
    whole = sum((part.sum(axis=1) for part in sizes), start=np.zeros(len(total)))[:, None]
    equal = 1.0 / max(1, sum(part.shape[1] for part, here in zip(effects, present, strict=True) if here))
    shares = [
        np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), equal * here)
        for part, here in zip(sizes, present, strict=True)
    ]
    return [part + rest[:, None] * share for part, share in zip(effects, shares, strict=True)]


def _partner_effects(
    name: str, one: PartnerList, gate: methods.ListGates | None, effects: Floats
) -> list[list[PartnerEffect]]:
    """Return the partners of every record in one list, without gaps; none while its holder is away."""
    if isinstance(one.holders[0], AbsentSecondary):
        return [[] for _ in effects]
    nothing = np.full(one.partner.shape, None)
    weight, match = nothing, nothing
    if gate is not None:
        weight = learnt_weights(gate, one.similarity).double().cpu().numpy()
        match = nothing if gate.match is None else match_probabilities(gate, one.similarity)
    overall = one.similarity.double().nanmean(dim=2).cpu().numpy()
    columns = (part.tolist() for part in (one.partner, overall, effects, weight, match))
    return [
        [PartnerEffect(name, *facts) for facts in zip(*record, strict=True) if facts[0] >= 0]
        for record in zip(*columns, strict=True)
    ]


def _largest_first(effects: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(effects.items(), key=lambda entry: -abs(entry[1])))
