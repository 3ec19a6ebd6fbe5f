"""The rungs of the ladder: model variants, their inputs, their training and its stored results; needs torch and numpy.

Letters: n primary records, L distinct lists of partners, K partners of each, m records of a secondary.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from fedsim.errors import FileError, SettingError
from fedsim.hyperparameters import TrainingSettings
from fedsim.pipeline.fitted_model import FitPlan, LocalRows, PartnerFeatures, fit, fit_trees_beside, ignore_restart
from fedsim.protocol.session import PeerRestarted
from fedsim.registry import FEDSIM_VARIANTS, METHODS, PRESETS
from fedsim.splitnn import Features, methods
from fedsim.storage.files import append_durably, atomic_write, ensure_folder
from fedsim.storage.tensor_file import arrays_digest
from fedsim.training import Config, Hook, PrimaryData, SecondaryData, TaskType, TrainingResult
from fedsim.training.boosted_trees import (
    TREE_SETTINGS,
    EmbeddedPartners,
    TreeColumns,
    TreeInputs,
    blend,
    choose_weight,
    fit_trees,
    measure,
    softmax_weights,
)
from fedsim.training.config import build_config
from fedsim.training.data import Metrics, as_features
from fedsim.types import AnyArray, Floats32, Integers, Links, Split
from fedsim.version import VERSION

NamedArrays = dict[str, AnyArray]
LINK_ARRAYS = ("list_of", "partner", "similarity", "equal")


@dataclass(frozen=True, eq=False)
class LinkedSecondary:
    """A secondary: its features, the distinct lists of partners, and the list of every record.

    ``equal`` has, for every list, the row whose identifiers equal the record's, or -1. ``embedding`` is what trees see
    of every row, where the job sends it; it follows from the features and the protection of the job. Features of a
    secondary at its own site are empty, and its embedding counts for linked rows only. ``match`` is the true row of
    every record, where it is known.
    """

    features: Features  # (m, ...)
    list_of: AnyArray  # (n,)
    partner: AnyArray  # (L, K)
    similarity: AnyArray  # (L, K)
    equal: AnyArray  # (L,)
    name: str = "secondary"
    embedding: Floats32 | None = None  # (m, W)
    match: AnyArray | None = None  # (n,)
    unlinked: float = 0.0  # share of the records that reach no row


@dataclass(frozen=True, eq=False)
class SplitArrays:
    """Everything that trainings on one split use.

    ``own`` are the primary's identifiers as features; records with equal identifiers are in the same group. ``about``
    has JSON values: name, unit, task, split and seed at least.
    """

    primary: Features
    own: Features
    secondaries: tuple[LinkedSecondary, ...]
    labels: AnyArray  # (n,)
    groups: AnyArray  # (n,)
    split: Split
    about: dict[str, Any] = field(repr=False)

    @cached_property
    def digest(self) -> str:
        """Digest of all arrays."""
        return arrays_digest(*(array for _, array in sorted(self.named().items())))

    @cached_property
    def own_digest(self) -> str:
        """Digest of the arrays that the primary has without any partner."""
        own = {name: array for name, array in self.named().items() if not name.startswith("secondary")}
        return arrays_digest(*(array for _, array in sorted(own.items())))

    def named(self) -> NamedArrays:
        """Return all arrays by name."""
        flat = {"labels": self.labels, "groups": self.groups}
        flat |= {f"split.{name}": getattr(self.split, name) for name in ("train", "validation", "test")}
        tables = {f"secondary{place}": linked.features for place, linked in enumerate(self.secondaries)}
        for party, features in {"primary": self.primary, "own": self.own, **tables}.items():
            flat[f"{party}.numbers"] = features.numbers
            flat[f"{party}.codes"] = features.codes.astype(np.int32)
            flat[f"{party}.cardinalities"] = np.array(features.cardinalities, np.int64)
            flat[f"{party}.spread"] = np.array(features.many_valued, np.int64)
            if features.periodic:  # left out if empty, so that digests of arrays without places stay
                flat[f"{party}.periodic"] = np.array(features.periodic, np.int64)
        for place, linked in enumerate(self.secondaries):
            flat |= {f"secondary{place}.{part}": getattr(linked, part) for part in LINK_ARRAYS}
            if linked.match is not None:
                flat[f"secondary{place}.match"] = linked.match
        return flat


PARTNERS = ("real", "placebo", "shuffled", "same-noise")
INPUTS = ("features", "identifiers", "binned", "embedded", "secondary", "linked", "joined")
PARTNER_INPUTS = ("embedded", "secondary", "linked", "joined")  # of a partner, even for a method without partners
BOOSTED_TREES, STACKED = "trees", "stacked"


@dataclass(frozen=True)
class Rung(TrainingSettings):
    """One training to compare: a method on certain inputs with certain settings.

    Parameters
    ----------
    key, name
        For programs and for people.
    method
        A registered method, or ``"trees"``, ``"stacked"`` or a registered variant of FedSim.
    partner
        ``"real"``; ``"placebo"`` shuffles the partner's feature rows and keeps the links; ``"shuffled"`` gives every
        record the links of another; ``"same-noise"`` gives all records of a group the links and the noise of its first.
    inputs
        The primary's ``"features"``; these and its own ``"identifiers"``; the same with places ``"binned"``, as other
        numbers are, instead of by periodic embeddings; the same where, for ``"stacked"``, the trees may also see the
        ``"embedded"`` partners as in a job that sends an embedding; or, for a method without partners, only the
        features of the most similar record of the ``"secondary"``, or all that is known in one place: features,
        identifiers and the features of ``"linked"`` records, or both parties' features ``"joined"`` by the true rows.
    pieces
        Such as ``"13"``: the secondary's columns are split between three parties, and the first and the third take
        part (paper, appendix "Multi-Party FedSim").
    k
        Number of partners; None uses all that were linked.
    decay
        Weight decay; None keeps that of the preset.
    taking_part, placebos
        Names of the secondaries that take part, and of those that a placebo replaces; None means all of them.
    """

    key: str
    name: str
    method: str
    partner: str = "real"
    inputs: str = "features"
    pieces: str = ""
    k: int | None = None
    decay: float | None = None
    taking_part: tuple[str, ...] | None = None
    placebos: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting, known in (("partner", PARTNERS), ("inputs", INPUTS)):
            value = getattr(self, setting)
            if value not in known:
                message = f"{setting} '{value}' is unknown; choose {' or '.join(known)}"
                raise SettingError(message, code=f"unknown-{setting}")

    def check(self) -> None:
        """Raise SettingError if the rung names an unknown method or preset."""
        if self.method not in (BOOSTED_TREES, STACKED, *FEDSIM_VARIANTS):
            METHODS[self.method]
        PRESETS[self.preset]

    def config(self, seed: int, device: str = "auto", n_train: int | None = None) -> Config:
        """Return the configuration of a rung for a number of training records: its preset, method and settings.

        >>> Rung("x", "X", "avgsim", preset="paper").config(seed=0).batch
        128
        """
        self.check()
        method: str | methods.Method = self.method
        if self.method in FEDSIM_VARIANTS:
            method = FEDSIM_VARIANTS[self.method](PRESETS[self.preset].build().method)
        config = build_config(method, self, seed=seed, device=device, n_train=n_train)
        if self.decay is not None:
            if not 0 <= self.decay < 1:
                message = f"decay={self.decay}; choose a weight decay from 0 to below 1, such as 1e-4"
                raise SettingError(message, code="decay-out-of-range", value=self.decay)
            config = replace(config, optimiser=replace(config.optimiser, decay=self.decay))  # type: ignore[type-var]
        return config

    def result_key(self, arrays: SplitArrays) -> dict[str, Any]:
        """Return what identifies a training: its settings, the digest of the data it sees, and their protection."""
        seed, protection = arrays.about["seed"], arrays.about.get("protection")
        if self.needs_no_partner:
            data = [arrays.own_digest, seed]
        else:
            data = [arrays.digest, seed, *([protection] if protection else [])]
        linked = {each.partner.shape[1] for each in arrays.secondaries}
        same = replace(self, k=None) if linked == {self.k} else self
        if self.partner == "same-noise" and self._lists_are_shared(arrays):
            same = replace(same, partner="real")
        if self.inputs == "binned" and not (arrays.primary.periodic or arrays.own.periodic):
            same = replace(same, inputs="identifiers")
        settings = asdict(same)
        return {"settings": settings, "data": " ".join(map(str, data)), "revision": REVISION}

    @property
    def trains_network(self) -> bool:
        """Whether it trains a network rather than boosted trees, or combines the two."""
        return self.method not in (BOOSTED_TREES, STACKED)

    @property
    def components(self) -> tuple[Rung, ...]:
        """The network and the boosted trees that ``"stacked"`` combines; embedded trees are fitted beside it."""
        if self.method != STACKED:
            return ()
        network = replace(self, key=f"{self.key}-network", name=f"{self.name}, network", method="fedsim")
        if self.inputs == "embedded":
            return (replace(network, inputs="identifiers"),)
        trees = Rung(f"{self.key}-trees", f"{self.name}, trees", BOOSTED_TREES, inputs=self.inputs)
        return network, trees

    @property
    def needs_no_partner(self) -> bool:
        """Whether it uses nothing of any partner."""
        return self.partners is methods.PartnerRequirement.NONE and self.inputs not in PARTNER_INPUTS

    @property
    def partners(self) -> methods.PartnerRequirement:
        """Which partners its method needs."""
        if self.method == BOOSTED_TREES:
            return methods.PartnerRequirement.NONE
        known: type[methods.Method] = METHODS["fedsim" if self.method in (STACKED, *FEDSIM_VARIANTS) else self.method]
        return known.partners  # type: ignore[return-value]

    def primary_data(self, arrays: SplitArrays) -> PrimaryData:
        """Return what the primary of a rung learns from."""
        features = arrays.primary
        if self.inputs in ("identifiers", "binned", "embedded", "linked"):
            features = concatenate_features(features, arrays.own)
        if self.inputs == "binned":
            features = replace(features, periodic=())
        if self.inputs == "linked":
            for linked in arrays.secondaries:
                features = concatenate_features(features, joined_features(linked))
        if self.inputs == "secondary":
            linked = arrays.secondaries[0]
            features = linked.features.take(linked.partner[linked.list_of, 0].astype(np.int64))
        if self.inputs == "joined":
            for linked in arrays.secondaries:
                features = concatenate_features(features, linked.features.take(true_rows(linked)))
        task_type = TaskType.NUMBERS if arrays.about["task"] == "regression" else TaskType.CLASSES
        return PrimaryData(features, arrays.labels, task_type)

    def secondary_data(self, arrays: SplitArrays) -> list[SecondaryData]:
        """Return the partners of a rung, real or not."""
        order, secondaries = self.link_order(arrays), []
        for linked, rows in zip(self.secondaries(arrays), self.row_orders(arrays), strict=True):
            features = linked.features if rows is None else linked.features.take(rows)
            secondaries.append(SecondaryData(features, *self.links(linked, order), linked.name))
        return split_columns(secondaries[0], self.pieces) if self.pieces else secondaries

    def partner_rows(self, arrays: SplitArrays) -> list[LocalRows]:
        """Return the partners of a rung for a network, if it sees any; pieces of a secondary share one list."""
        if self.partners is methods.PartnerRequirement.NONE:
            return []
        parties = self.secondary_data(arrays)
        return [LocalRows(parties)] if self.pieces else [LocalRows([party]) for party in parties]

    def embedded_partners(self, arrays: SplitArrays) -> list[EmbeddedPartners]:
        """Return what trees may see of the partners of a rung, real or not: the embedding of all linked rows."""
        order, found = self.link_order(arrays), []
        rng = np.random.default_rng([PLACEBO_SEED, arrays.about["seed"]])
        for linked, rows in zip(self.secondaries(arrays), self.row_orders(arrays), strict=True):
            if linked.embedding is None:
                message = f"rung '{self.key}' needs an embedding of '{linked.name}', but none was computed"
                raise SettingError(f"{message}; choose inputs = 'identifiers'", code="no-embedding")
            partner, similarity = self.links(linked, order)
            used, place = np.unique(partner, return_inverse=True)
            shown = used
            if rows is not None:  # a placebo; a secondary at its own site has no rows here but the linked ones
                shown = rows[used] if len(rows) else rng.permutation(used)
            lists = Links(place.reshape(partner.shape), similarity)
            found.append(EmbeddedPartners(linked.embedding[shown], lists))
        return found

    def row_orders(self, arrays: SplitArrays) -> list[AnyArray | None]:
        """Return, for each secondary, which row stands for every row if it is a placebo, or None."""
        rng = np.random.default_rng([PLACEBO_SEED, arrays.about["seed"]])
        secondaries = self.secondaries(arrays)
        return [rng.permutation(len(one.features)) if self.is_placebo(one) else None for one in secondaries]

    def secondaries(self, arrays: SplitArrays) -> list[LinkedSecondary]:
        """Return the secondaries that take part."""
        wanted = self.taking_part
        return [linked for linked in arrays.secondaries if wanted is None or linked.name in wanted]

    def is_placebo(self, linked: LinkedSecondary) -> bool:
        """Return whether a placebo replaces this secondary."""
        return self.partner == "placebo" and (self.placebos is None or linked.name in self.placebos)

    def link_order(self, arrays: SplitArrays) -> AnyArray:
        """Return whose links every record gets: its own, or those of another."""
        n = len(arrays.labels)
        if self.partner == "same-noise":
            _, first, group = np.unique(arrays.groups, return_index=True, return_inverse=True)
            return first[group]
        if self.partner != "shuffled":
            return np.arange(n)
        return np.random.default_rng([PLACEBO_SEED, arrays.about["seed"]]).permutation(n)

    def _lists_are_shared(self, arrays: SplitArrays) -> bool:
        order = self.link_order(arrays)
        return all(np.array_equal(linked.list_of[order], linked.list_of) for linked in arrays.secondaries)

    def links(self, linked: LinkedSecondary, order: AnyArray) -> tuple[AnyArray, AnyArray]:
        """Return partner rows and similarities of a rung, (n, K) each."""
        lists = linked.list_of[order]
        if self.partners is methods.PartnerRequirement.SOME:
            equal = linked.equal[lists, None].astype(np.int64)
            return equal, np.zeros(equal.shape)
        limit = linked.partner.shape[1]
        k = self.k or limit
        if k > limit:
            message = f"k={k} in rung '{self.key}', but only {limit} partners were linked; choose k up to {limit}"
            raise SettingError(message, code="k-too-large", limit=limit)
        return linked.partner[lists, :k].astype(np.int64), linked.similarity[lists, :k].astype(np.float64)


# Inputs of a rung


PLACEBO_SEED = 1234
N_COLUMN_PARTIES = 3


def split_columns(secondary: SecondaryData, wanted: str) -> list[SecondaryData]:
    """Split a secondary's columns between three parties with the same rows; the first of those wanted has the list."""
    features = as_features(secondary.features)
    columns = np.array_split(np.arange(features.numbers.shape[1]), N_COLUMN_PARTIES)
    tables = {str(place + 1): Features(features.numbers[:, part]) for place, part in enumerate(columns)}
    first, others = wanted[:1], list(wanted[1:])
    leader = SecondaryData(tables[first], secondary.partner, secondary.similarity, f"party {first}")
    return [leader, *(SecondaryData(tables[one], name=f"party {one}", aligned_with=leader.name) for one in others)]


def concatenate_features(left: Features, right: Features) -> Features:
    """Return the columns of both."""
    shift = left.numbers.shape[1]
    return Features(
        np.hstack([left.numbers, right.numbers]),
        np.hstack([left.codes, right.codes]),
        left.cardinalities + right.cardinalities,
        spread=(*left.many_valued, *(shift + place for place in right.many_valued)),
        periodic=(*left.periodic, *(shift + place for place in right.periodic)),
    )


def true_rows(linked: LinkedSecondary) -> Integers:
    """Return the true row of every record; only generated data and one table cut in two have them."""
    if linked.match is None:
        message = f"the true rows of '{linked.name}' are not known, so it cannot be joined; leave out this rung"
        raise SettingError(message, code="no-true-rows")
    return linked.match.astype(np.int64)


JOINED_RECORDS = 4096  # whose partners' features are in memory at a time


def joined_features(linked: LinkedSecondary) -> Features:
    """Return, for every record, what one owner of both tables would join: the features of the most similar partner, the
    mean of all partners' numbers weighted by similarity, and the similarities themselves.
    """
    lists, numbers = linked.list_of, linked.features.numbers
    similarity = linked.similarity.reshape(*linked.partner.shape, -1).astype(np.float64)  # (L, K, F)
    overall = np.nanmean(similarity, axis=2)  # (L, K)
    weight = softmax_weights(overall)
    mean = np.zeros((len(linked.partner), numbers.shape[1]), np.float32)
    for first in range(0, len(mean), JOINED_RECORDS):
        here = slice(first, first + JOINED_RECORDS)
        mean[here] = np.einsum("lk,lkc->lc", weight[here], numbers[linked.partner[here]])
    nearest = linked.features.take(linked.partner[np.arange(len(overall)), overall.argmax(axis=1)].astype(np.int64))
    scores = np.column_stack([np.nan_to_num(similarity).max(axis=1), overall.mean(axis=1)])
    joined = replace(nearest, numbers=np.hstack([nearest.numbers, mean, scores]).astype(np.float32))
    return replace(joined, spread=()).take(lists)


# Training


MessageCallback = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class RungOutcome:
    """The result of a training: predictions of the test rows, metrics, and figures about the run.

    ``on_validation`` are the predictions of the validation rows, by which trainings are combined.
    """

    predictions: AnyArray
    test: Metrics
    validation: Metrics
    figures: dict[str, Any]
    on_validation: AnyArray

    @classmethod
    def of(cls, result: TrainingResult) -> Self:
        """Return what is stored of a training."""
        seconds = float(np.median([epoch.seconds for epoch in result.history]))
        config, predictions, metrics = result.model.config, result.predictions, result.metrics
        figures: dict[str, Any] = {"best_epoch": result.best.number, "epochs": len(result.history)}
        figures |= {"epoch_seconds": seconds, "limit": config.epochs, "patience": config.patience}
        return cls(predictions["test"], metrics["test"], metrics["validation"], figures, predictions["validation"])


RungTrainer = Callable[[Rung, SplitArrays], RungOutcome]


def run_training(rung: Rung, arrays: SplitArrays, hooks: Sequence[Hook] = ()) -> RungOutcome:
    """Train one rung in this process."""
    if not rung.trains_network:
        return train_trees(rung, rung.primary_data(arrays), arrays)
    return train_network(rung, arrays, rung.partner_rows(arrays), hooks=hooks)


def train_network(
    rung: Rung,
    arrays: SplitArrays,
    partners: Sequence[PartnerFeatures],
    *,
    device: str = "auto",
    hooks: Sequence[Hook] = (),
    restarted: Callable[[PeerRestarted], None] = ignore_restart,
) -> RungOutcome:
    """Train the network of a rung as a job trains its own."""
    config = rung.config(arrays.about["seed"], device, len(arrays.split.train))
    plan = FitPlan(config, arrays.split, hooks=hooks, restarted=restarted)
    return RungOutcome.of(fit(rung.primary_data(arrays), partners, plan).network)


def train_trees(rung: Rung, primary: PrimaryData, arrays: SplitArrays) -> RungOutcome:
    """Fit gradient boosted trees of several sizes; the validation rows choose, then trees are refitted on them too."""
    split, data = arrays.split, replace(primary, labels=_class_places(arrays))
    settings = tuple((rung.learning_rate or rate, leaves) for rate, leaves in TREE_SETTINGS)
    seed, limits = arrays.about["seed"], {"rounds": rung.epochs, "patience": rung.patience}
    chosen, features = fit_trees(data, split, seed=seed, settings=settings, **limits), as_features(data.features)
    validation = chosen.model.predict(features.take(split.validation))
    test = chosen.refit(data, split).predict(features.take(split.test))
    on_test = measure(test, data.labels[split.test], data.task_type)
    on_validation = measure(validation, data.labels[split.validation], data.task_type)
    return RungOutcome(test, on_test, on_validation, {"best_epoch": chosen.model.rounds}, validation)


def _class_places(arrays: SplitArrays) -> AnyArray:
    """Return the labels, classes as their places among those that any record has."""
    if arrays.about["task"] == "regression":
        return arrays.labels
    split = arrays.split
    known = np.concatenate([split.train, split.validation, split.test])  # others may have no label
    return np.searchsorted(np.unique(arrays.labels[known]), arrays.labels)


def combine_outcomes(arrays: SplitArrays, parts: Sequence[AnyArray], on_validation: Sequence[AnyArray]) -> RungOutcome:
    """Return the weighted mean of two predictions; the validation records choose the weight of the first."""
    split, labels, (network, trees) = arrays.split, _class_places(arrays), on_validation
    task_type = TaskType.NUMBERS if arrays.about["task"] == "regression" else TaskType.CLASSES
    weight = choose_weight(network, trees, labels[split.validation], task_type)
    test, validation = blend(weight, parts[0], parts[1]), blend(weight, network, trees)
    scores = [measure(test, labels[split.test], task_type), measure(validation, labels[split.validation], task_type)]
    return RungOutcome(test, scores[0], scores[1], {"weight": weight}, validation)


def combine_embedded(rung: Rung, arrays: SplitArrays, network: AnyArray, on_validation: AnyArray) -> RungOutcome:
    """Return a network's predictions averaged with trees that may see the partners of a rung, as a job averages them.

    The validation records choose whether the trees see them, and the weight of the network.
    """
    split, data = arrays.split, replace(rung.primary_data(arrays), labels=_class_places(arrays))
    seed = arrays.about["seed"]
    dropout = rung.components[0].config(seed, n_train=len(split.train)).party_dropout
    # The primary's names are among its identifiers already.
    inputs = TreeInputs(TreeColumns.none(len(data.labels)).names, rung.embedded_partners(arrays), dropout)
    parts: Mapping[str, AnyArray] = {"test": network, "validation": on_validation}
    beside = fit_trees_beside((parts, {}), data, split, inputs, seed=seed)
    if beside is not None:  # otherwise the trees have no weight
        parts = beside.predictions
    scores = {
        part: measure(values, data.labels[getattr(split, part)], data.task_type) for part, values in parts.items()
    }
    weight, pools = (1.0, ()) if beside is None else (beside.trees.weight, beside.trees.pools)
    figures = {"weight": weight, "trees_see_partners": bool(pools)}
    return RungOutcome(parts["test"], scores["test"], scores["validation"], figures, parts["validation"])


# A folder of training results: one JSON line per training and its predictions; it survives a kill


RESULTS_FILE, PREDICTIONS_FOLDER = "results.jsonl", "predictions"
# Of the training behind stored results. Raise it with every change that alters them: results of different revisions are
# never compared.
REVISION = 3


class ResultStore:
    """The training results in a folder, identified by the settings of a rung and the digest of its data.

    Parameters
    ----------
    folder
        Where ``results.jsonl`` and the folder ``predictions`` are, or will be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        lines = _read_complete_lines(folder / RESULTS_FILE).splitlines()
        stored = [_parse_line(line, folder / RESULTS_FILE) for line in lines]
        self._lines = {self.name_of(line): line for line in stored}

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The results of all trainings."""
        return list(self._lines.values())

    def has(self, key: Mapping[str, Any]) -> bool:
        """Return whether this training is stored; one whose predictions are lost or damaged does not count."""
        if self.name_of(key) not in self._lines:
            return False
        try:
            self.predictions(key), self.validation_predictions(key)
        except (OSError, ValueError, EOFError):
            return False
        return True

    def name_of(self, key: Mapping[str, Any]) -> str:
        """Return the name of a training; equal trainings have equal names.

        The rung's name and key do not change what is trained.
        """
        settings = {name: value for name, value in key["settings"].items() if name not in ("key", "name")}
        named = [settings, key["data"], key.get("revision")]  # results of the first releases have none
        return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:24]

    def line(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """Return the results of a training."""
        return self._lines[self.name_of(key)]

    def predictions(self, key: Mapping[str, Any]) -> AnyArray:
        """Return its predictions of the test records."""
        return np.asarray(np.load(self._predictions_path(key), allow_pickle=False))

    def validation_predictions(self, key: Mapping[str, Any]) -> AnyArray:
        """Return its predictions of the validation records."""
        return np.asarray(np.load(self._predictions_path(key).with_suffix(".validation.npy"), allow_pickle=False))

    def add(self, line: dict[str, Any], predictions: AnyArray, on_validation: AnyArray) -> None:
        """Store a training; the line is written last, so it is there only if the predictions are."""
        path, results = self._predictions_path(line), self.folder / RESULTS_FILE
        ensure_folder(path.parent)
        for file, values in ((path.with_suffix(".validation.npy"), on_validation), (path, predictions)):
            buffer = io.BytesIO()
            np.save(buffer, values.astype(np.float32), allow_pickle=False)
            with atomic_write(file) as part:
                part.write_bytes(buffer.getvalue())
        text = json.dumps(line, allow_nan=False)
        append_durably(results, f"{text}\n".encode(), after=len(_read_complete_lines(results).encode()))
        self._lines[self.name_of(line)] = line

    def _predictions_path(self, key: Mapping[str, Any]) -> Path:
        return self.folder / PREDICTIONS_FOLDER / f"{self.name_of(key)}.npy"


def _read_complete_lines(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}", code="cannot-read") from error
    except UnicodeDecodeError:
        raise FileError(f"{path} is not UTF-8 text; fix or remove the file", code="results-not-text") from None
    return text[: text.rfind("\n") + 1]  # a line without its end was cut short by a kill


def _parse_line(line: str, path: Path) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except ValueError:
        raise FileError(f"{path} has a line of invalid JSON; fix or remove the file", code="results-not-json") from None
    if not (isinstance(parsed, dict) and isinstance(parsed.get("settings"), dict) and "data" in parsed):
        message = f"{path} has a line without settings and data; fix or remove the file"
        raise FileError(message, code="results-incomplete")
    return parsed


def train_missing(
    cases: Iterable[SplitArrays],
    rungs: Sequence[Rung],
    results: ResultStore,
    report: MessageCallback = print,
    train_rung: RungTrainer = run_training,
) -> None:
    """Train every rung on every case, except those that are already among the results."""
    for rung in rungs:
        rung.check()
    for arrays in cases:
        for rung in rungs:
            key, about = rung.result_key(arrays), arrays.about
            if results.has(key):
                continue
            began = time.perf_counter()
            combine = partial(_stack, results=results, report=report, train_rung=train_rung)
            outcome = (combine if rung.components else train_rung)(rung, arrays)
            line = {**about, **key, "test": outcome.test, "validation": outcome.validation, **outcome.figures}
            line |= {**environment_info(), "seconds": time.perf_counter() - began}
            results.add(line, outcome.predictions, outcome.on_validation)
            report(f"{about['split']} split, seed {about['seed']}: {rung.name}: {format_metrics(outcome.test)}")


def _stack(
    rung: Rung, arrays: SplitArrays, results: ResultStore, report: MessageCallback, train_rung: RungTrainer
) -> RungOutcome:
    """Train the components of a rung, or take their stored results, and combine them."""
    keys = [part.result_key(arrays) for part in rung.components]
    train_missing([arrays], rung.components, results, report, train_rung)
    on_validation = [results.validation_predictions(key) for key in keys]
    on_test = [results.predictions(key) for key in keys]
    if rung.inputs == "embedded":
        outcome = combine_embedded(rung, arrays, on_test[0], on_validation[0])
    else:
        outcome = combine_outcomes(arrays, on_test, on_validation)
    network = results.line(keys[0])
    figures = {name: network[name] for name in ("best_epoch", "epochs", "limit", "patience") if name in network}
    return replace(outcome, figures=outcome.figures | figures)


def numbered_progress(report: MessageCallback, total: int) -> MessageCallback:
    """Return a callback that numbers its messages and says how long the others take at the pace so far."""
    done, began = count(1), time.monotonic()

    def numbered(message: str) -> None:
        number = next(done)
        minutes = (time.monotonic() - began) / number * max(0, total - number) / 60
        report(f"[{number} of at most {total}, at most {max(1, round(minutes)):,} min left] {message}")

    return numbered


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Format metrics for people.

    >>> format_metrics({"rmse": 27.4049, "r2": 0.95, "mae": 99581.2})
    'rmse 27.4, r2 0.95, mae 99,581'
    """
    return ", ".join(f"{name} {value:{',.0f' if abs(value) >= 1e4 else '.4g'}}" for name, value in metrics.items())


def environment_info() -> dict[str, str]:
    """Return device and versions of this process."""
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    return {"device": device, "fedsim": VERSION, "torch": torch.__version__, "numpy": np.__version__}
