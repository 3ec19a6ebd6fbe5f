"""Gradient boosted trees beside the primary's network: fitted by scikit-learn, stored as arrays, evaluated by NumPy.

scikit-learn can store its models with pickle only, which we never load. Its trees are therefore copied into arrays.

Letters: n records, T trees, M nodes of all trees, B sets of categories, C outputs, L lists of partners, K partners of
each, U rows of a secondary, W numbers of a row, P columns of trees per list, H hashed trigrams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.splitnn import Features
from fedsim.training.data import (
    Metrics,
    PrimaryData,
    TaskType,
    as_features,
    classification_metrics,
    fit_temperature,
    half_widths,
    interval_stretch,
    regression_metrics,
    scale_probabilities,
    selection_key,
    stretch_intervals,
)
from fedsim.types import AnyArray, Floats, Floats32, Links, Split

MAX_CATEGORIES = 250  # scikit-learn takes at most 255; columns with more are taken as numbers
ROUNDS, PATIENCE = 3000, 40
TREE_SETTINGS = ((0.1, 63), (0.05, 15))  # learning rate and leaves; the validation records choose
FITS, SHARE_OF_COLUMNS = 4, 0.5  # whose predictions are averaged, and from how many columns each split chooses
COMPARED_FITS = 2  # of every setting: large trees gain more by averaging, so single fits would favour small ones
WORD_BITS = 32  # of a set of categories, which has eight words
PREDICTION_PAIRS = 1 << 18  # of a record and a tree, whose nodes are in memory at a time


@dataclass(frozen=True, eq=False)
class BoostedTrees:
    """Trees as arrays: a node sends a record to ``left`` or ``right``, and a leaf to itself.

    ``sets`` are the categories that a node sends to the left.
    """

    feature: AnyArray  # (M,)
    threshold: Floats  # (M,)
    missing_left: AnyArray  # (M,)
    categorical: AnyArray  # (M,)
    set_of: AnyArray  # (M,)
    left: AnyArray  # (M,)
    right: AnyArray  # (M,)
    value: Floats  # (M,)
    root: AnyArray  # (T,)
    output: AnyArray  # (T,)
    sets: AnyArray  # (B, 8)
    baseline: Floats  # (C,)
    depth: AnyArray  # (1,)

    def raw(self, columns: Floats) -> Floats:
        """Return the sum of all trees for records with these columns, (n, columns) -> (n, C)."""
        size = max(1, PREDICTION_PAIRS // max(1, len(self.root)))
        chunks = [columns[first : first + size] for first in range(0, len(columns), size)]
        return np.concatenate([self._raw(chunk) for chunk in chunks] or [np.zeros((0, len(self.baseline)))])

    def _raw(self, columns: Floats) -> Floats:
        n_trees, leaf = len(self.root), self.left == np.arange(len(self.left))
        reached = np.tile(self.root, len(columns))  # (n * T,)
        pair = np.flatnonzero(~leaf[reached])  # of a record and a tree, on its way to a leaf
        node, row = reached[pair], pair // n_trees
        for _ in range(int(self.depth[0])):
            cell = columns[row, self.feature[node]]
            missing = np.isnan(cell)
            goes_left = np.where(missing, self.missing_left[node], cell <= self.threshold[node])
            listed = np.flatnonzero(self.categorical[node] & ~missing)
            code = cell[listed].astype(np.int64)
            words = self.sets[self.set_of[node[listed]], code // WORD_BITS]
            goes_left[listed] = (words >> (code % WORD_BITS)) & 1
            node = np.where(goes_left, self.left[node], self.right[node])
            reached[pair] = node
            on = ~leaf[node]
            pair, node, row = pair[on], node[on], row[on]
        values = self.value[reached].reshape(len(columns), n_trees)
        total = np.tile(self.baseline, (len(columns), 1))  # (n, C)
        for place in range(len(self.baseline)):
            total[:, place] += values[:, self.output == place].sum(axis=1)
        return total

    def tensors(self) -> dict[str, Tensor]:
        """Return all arrays as tensors, for a file."""
        return {one.name: torch.from_numpy(np.ascontiguousarray(getattr(self, one.name))) for one in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> BoostedTrees:
        """Return the trees that :meth:`tensors` described."""
        return cls(**{one.name: tensors[one.name].numpy() for one in fields(cls)})


def average_trees(parts: Sequence[BoostedTrees]) -> BoostedTrees:
    """Return the trees of several fits as one, which predicts the mean of what each predicts."""
    nodes, sets = (np.cumsum([0, *map(len, sizes)]) for sizes in ([p.value for p in parts], [p.sets for p in parts]))
    moved = [
        replace(
            part,
            set_of=part.set_of + first_set,
            left=part.left + first,
            right=part.right + first,
            root=part.root + first,
            value=part.value / len(parts),
        )
        for part, first, first_set in zip(parts, nodes, sets, strict=False)  # the last sums are the totals
    ]
    joined = {one.name: np.concatenate([getattr(part, one.name) for part in moved]) for one in fields(BoostedTrees)}
    baseline, depth = np.mean([part.baseline for part in parts], axis=0), np.max([part.depth for part in parts], axis=0)
    return BoostedTrees(**{**joined, "baseline": baseline, "depth": depth})


def _copy_trees(model: Any, rounds: int) -> BoostedTrees:
    """Copy the first rounds of a fitted model of scikit-learn."""
    parts: dict[str, list[AnyArray]] = {}
    roots, outputs, sets, start, n_sets, depth = [], [], [np.zeros((1, 8), np.int64)], 0, 1, 1
    for trees in model._predictors[:rounds]:
        for output, tree in enumerate(trees):
            nodes, here = tree.nodes, np.arange(len(tree.nodes))
            leaf = nodes["is_leaf"].astype(bool)
            categorical = nodes["is_categorical"].astype(bool) & ~leaf
            columns = {
                "feature": np.where(leaf, 0, nodes["feature_idx"]).astype(np.int64),
                # An infinite threshold, which parts the missing from all others, would not be stored.
                "threshold": np.where(leaf, 0.0, np.nan_to_num(nodes["num_threshold"])),
                "missing_left": nodes["missing_go_to_left"].astype(bool),
                "categorical": categorical,
                "set_of": np.where(categorical, n_sets + nodes["bitset_idx"].astype(np.int64), 0),
                "left": start + np.where(leaf, here, nodes["left"]).astype(np.int64),
                "right": start + np.where(leaf, here, nodes["right"]).astype(np.int64),
                "value": nodes["value"].astype(np.float64),
            }
            for name, values in columns.items():
                parts.setdefault(name, []).append(values)
            sets.append(tree.raw_left_cat_bitsets.astype(np.int64).reshape(-1, 8))
            roots.append(start)
            outputs.append(output)
            start, n_sets = start + len(nodes), n_sets + len(sets[-1])
            depth = max(depth, int(nodes["depth"].max()))
    return BoostedTrees(
        **{name: np.concatenate(values) for name, values in parts.items()},
        root=np.array(roots, np.int64),
        output=np.array(outputs, np.int64),
        sets=np.concatenate(sets),
        baseline=np.asarray(model._baseline_prediction, np.float64).ravel(),
        depth=np.array([depth], np.int64),
    )


# Trees as a model of the primary's records


@dataclass(frozen=True, eq=False)
class TreeModel:
    """Fitted trees; ``classes`` are those of the training rows among ``n_classes`` (0: the label is a number).

    ``ranks`` has, for every column of codes, the place of each code among those of the training rows, -1 for others.
    """

    trees: BoostedTrees
    ranks: AnyArray  # (columns of codes, codes)
    classes: tuple[int, ...]
    n_classes: int
    rounds: int

    def predict(self, features: Any) -> Floats:
        """Return numbers (n,), or probabilities (n, classes); a class that no training record has gets none."""
        raw = self.trees.raw(_tree_columns(as_features(features), self.ranks))  # (n, C)
        if not self.n_classes:
            return raw[:, 0]
        if len(self.classes) == 1:
            found = np.ones((len(raw), 1))
        elif raw.shape[1] == 1:
            second = 1.0 / (1.0 + np.exp(-raw[:, 0]))
            found = np.column_stack([1.0 - second, second])
        else:
            found = np.exp(raw - raw.max(axis=1, keepdims=True))
            found /= found.sum(axis=1, keepdims=True)
        every = np.zeros((len(raw), self.n_classes))
        every[:, list(self.classes)] = found
        return every


def average_models(models: Sequence[TreeModel]) -> TreeModel:
    """Return a model that predicts the mean of several, which see the same columns; of classes, that of log-odds."""
    trees, rounds = average_trees([model.trees for model in models]), sum(model.rounds for model in models)
    return replace(models[0], trees=trees, rounds=rounds)


def _rank_codes(features: Features, rows: AnyArray) -> AnyArray:
    """Return the place of every code among those of these rows; codes of large columns are their own places."""
    ranks = np.full((len(features.cardinalities), max(features.cardinalities, default=0)), -1)
    for column, cardinality in enumerate(features.cardinalities):
        seen = np.unique(features.codes[rows, column])
        ranks[column, seen] = np.arange(len(seen)) if cardinality <= MAX_CATEGORIES else seen
    return ranks


def _tree_columns(features: Features, ranks: AnyArray) -> Floats:
    """Return features as the columns of trees: categories first, where scikit-learn would move them, then numbers.

    Codes of large columns are taken as numbers.
    """
    codes = features.codes.astype(np.float64)
    for column, places in enumerate(ranks):
        place = places[features.codes[:, column]]
        codes[:, column] = np.where(place < 0, np.nan, place)
    few = np.array([cardinality <= MAX_CATEGORIES for cardinality in features.cardinalities], dtype=bool)
    return np.hstack([codes[:, few], features.numbers, codes[:, ~few]]).astype(np.float64)


@dataclass(frozen=True)
class FitSettings:
    """How trees are fitted: random seed, learning rate, leaves of a tree, and rounds."""

    seed: int
    rate: float
    leaves: int
    rounds: int


@dataclass(frozen=True, eq=False)
class ChosenTrees:
    """Trees fitted to the training rows, as the validation rows chose them; ``fits`` are the settings of the averaged
    fits.

    Only these trees can be judged by the validation rows.
    """

    model: TreeModel
    fits: tuple[FitSettings, ...]

    def refit(self, data: PrimaryData, split: Split) -> TreeModel:
        """Fit the same trees to the training rows and the validation rows, which have nothing left to choose."""
        both = replace(split, train=np.concatenate([split.train, split.validation]))
        return average_models([_fit(data, both, settings) for settings in self.fits])


def fit_trees(
    data: PrimaryData,
    split: Split,
    *,
    seed: int,
    settings: Sequence[tuple[float, int]] = TREE_SETTINGS,
    rounds: int | None = None,
    patience: int | None = None,
) -> ChosenTrees:
    """Fit boosted trees of several sizes to the training rows; the validation rows choose a size and its rounds.

    Trees of that size are fitted :data:`FITS` times, each time to other columns, and averaged. Classes are integers
    from zero.
    """
    validation, labels = as_features(data.features).take(split.validation), data.labels[split.validation]
    seeds = np.random.SeedSequence(seed).generate_state(FITS).tolist()

    def fit(one: int, setting: tuple[float, int]) -> TreeModel:
        return _fit(data, split, FitSettings(one, *setting, rounds or ROUNDS), patience or PATIENCE)

    def quality(model: TreeModel) -> tuple[float, ...]:
        weights = _weights(data, split.validation)
        return selection_key(measure(model.predict(validation), labels, data.task_type, weights))

    compared = {setting: [fit(one, setting) for one in seeds[:COMPARED_FITS]] for setting in settings}
    best = max(compared, key=lambda setting: quality(average_models(compared[setting])))
    averaged = [*compared[best], *(fit(other, best) for other in seeds[COMPARED_FITS:])]
    fits = [FitSettings(one, *best, model.rounds) for one, model in zip(seeds, averaged, strict=True)]
    return ChosenTrees(average_models(averaged), tuple(fits))


def measure(predictions: Floats, labels: AnyArray, task_type: TaskType, weights: Floats | None = None) -> Metrics:
    """Return the metrics of predictions; ``weights`` say how much each record counts."""
    metrics = classification_metrics if task_type is TaskType.CLASSES else regression_metrics
    return metrics(predictions, labels, weights)


def _weights(data: PrimaryData, rows: AnyArray) -> Floats | None:
    return None if data.weights is None else data.weights[rows]


def _fit(data: PrimaryData, split: Split, settings: FitSettings, patience: int | None = None) -> TreeModel:
    """Fit trees to the training rows; with ``patience`` until the validation rows are predicted no better."""
    # scikit-learn is not on every machine that trains networks.
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor  # noqa: PLC0415

    features, labels, classify = as_features(data.features), data.labels, data.task_type is TaskType.CLASSES
    ranks = _rank_codes(features, split.train)
    columns = _tree_columns(features, ranks)
    n_categories = sum(cardinality <= MAX_CATEGORIES for cardinality in features.cardinalities)
    kind: Any = HistGradientBoostingClassifier if classify else HistGradientBoostingRegressor
    model = kind(
        max_iter=settings.rounds,
        learning_rate=settings.rate,
        max_leaf_nodes=settings.leaves,
        categorical_features=np.arange(columns.shape[1]) < n_categories,
        early_stopping=patience is not None,
        n_iter_no_change=patience or 1,
        max_features=SHARE_OF_COLUMNS,
        random_state=settings.seed,
    )
    judging: dict[str, Any] = {}
    if patience is not None:
        known = split.validation
        if classify:  # scikit-learn cannot score classes that training lacks, so such validation rows do not decide
            known = known[np.isin(labels[known], labels[split.train])]
        rows = known if len(known) else split.train
        judging = {"X_val": columns[rows], "y_val": labels[rows], "sample_weight_val": _weights(data, rows)}
    weights = _weights(data, split.train)
    model.fit(columns[split.train], labels[split.train], sample_weight=weights, **judging)
    # The first score is that of no tree at all.
    rounds = settings.rounds if patience is None else max(1, int(np.argmax(model.validation_score_)))
    labelled = np.concatenate([split.train, split.validation, split.test])
    n_classes = int(labels[labelled].max()) + 1 if classify else 0
    classes = tuple(int(name) for name in model.classes_) if classify else ()
    return TreeModel(_copy_trees(model, rounds), ranks, classes, n_classes, rounds)


WEIGHTS = np.linspace(0.0, 1.0, 21)  # of the network beside boosted trees


def choose_weight(
    network: AnyArray, trees: AnyArray, labels: AnyArray, task_type: TaskType, weights: Floats | None = None
) -> float:
    """Return the weight of the network with which the weighted mean predicts these labels best."""

    def loss(weight: float) -> float:
        metrics = measure(blend(weight, network, trees), labels, task_type, weights)
        return metrics["log_loss"] if task_type is TaskType.CLASSES else metrics["rmse"]

    return float(min(WEIGHTS.tolist(), key=loss))


def blend(weight: float, network: AnyArray, trees: AnyArray) -> Floats:
    """Return the weighted mean of two predictions.

    >>> blend(0.25, np.array([4.0]), np.array([8.0])).tolist()
    [7.0]
    """
    return np.asarray(weight * network.astype(np.float64) + (1.0 - weight) * trees.astype(np.float64))


# What trees see beside the primary's features: its own names, and partners. The activations of a trained network would
# know the labels of the training records, from which trees cannot learn to predict others. So each secondary sends an
# embedding that no label has influenced.


COMPONENTS = 16  # of an embedding, by which trees see the mean of all partners and the nearest one
SIMILARITY_COLUMNS = 2  # of the nearest partner, and the mean of all
POOLED_COLUMNS = SIMILARITY_COLUMNS + 2 * COMPONENTS
POOLED_RECORDS = 4096  # whose partners' rows are in memory at a time
POOL_ROWS = 1 << 18  # of an embedding, from which its components are computed
PROJECTED_ROWS = 1 << 16  # in double precision at a time
MAX_TREE_RECORDS = 1_000_000  # training records from which trees are fitted; more would not make them better


@dataclass(frozen=True, eq=False)
class EmbeddedPartners:
    """The partners of records in one list, as places among the embedded rows of their secondary."""

    rows: Floats32  # (U, W)
    neighbours: Links  # (n, K)


@dataclass(frozen=True, eq=False)
class TreeInputs:
    """What trees may see of all records beside their features.

    ``names`` are counts of trigrams, ``lists`` the partners in each list, None for a secondary that is away, and
    ``dropout`` is the share of the training records that do without each secondary.
    """

    names: Floats32  # (n, H)
    lists: Sequence[EmbeddedPartners | None] = ()
    dropout: float = 0.0

    def take(self, rows: AnyArray) -> TreeInputs:
        """Return the same of some records."""
        lists = [one and EmbeddedPartners(one.rows, one.neighbours.take(rows)) for one in self.lists]
        return replace(self, names=self.names[rows], lists=lists)


@dataclass(frozen=True, eq=False)
class TreeColumns:
    """The same as columns of trees; those of a secondary that is away are NaN."""

    names: Floats32  # (n, H)
    lists: Floats32  # (n, L, P)

    @classmethod
    def none(cls, n_records: int) -> TreeColumns:
        """Return no columns."""
        return cls(np.zeros((n_records, 0), np.float32), np.zeros((n_records, 0, POOLED_COLUMNS), np.float32))

    def take(self, rows: AnyArray) -> TreeColumns:
        """Return the columns of some records."""
        return TreeColumns(self.names[rows], self.lists[rows])

    def without(self, place: int) -> TreeColumns:
        """Return the columns as they are while the secondary of a list is away."""
        lists = self.lists.copy()
        lists[:, place : place + 1] = np.nan
        return replace(self, lists=lists)

    def with_average(self, places: slice) -> TreeColumns:
        """Return the columns as they would be if the partners in some lists were average ones, equally similar.

        Those of a secondary that is away stay as they are.
        """
        lists = self.lists.copy()
        pooled = lists[:, places, SIMILARITY_COLUMNS:]
        pooled[~np.isnan(pooled)] = 0.0  # embeddings are centred
        return replace(self, lists=lists)

    def with_names(self, first: int, counts: Sequence[float]) -> TreeColumns:
        """Return the columns with these counts of trigrams of every record, from column ``first`` on."""
        names = self.names.copy()
        names[:, first : first + len(counts)] = counts
        return replace(self, names=names)

    def beside(self, features: Features) -> Features:
        """Return the features with these columns beside them."""
        columns = [features.numbers, self.names, self.lists.reshape(len(self.lists), -1)]
        return replace(features, numbers=np.hstack(columns), spread=())


@dataclass(frozen=True, eq=False)
class PartnerPool:
    """The principal components of one secondary's embedding, by which the partners of a record are pooled."""

    centre: Floats  # (W,)
    directions: Floats  # (W, COMPONENTS)

    @classmethod
    def fit(cls, rows: Floats32) -> PartnerPool:
        """Find the directions in which the rows differ most; a narrow embedding is padded with zeros."""
        rows = rows[:: -(-len(rows) // POOL_ROWS) or 1]
        centre = rows.mean(axis=0, dtype=np.float64)
        spread = rows - centre
        _, vectors = np.linalg.eigh(spread.T @ spread)  # ascending
        found = vectors[:, ::-1][:, :COMPONENTS]
        return cls(centre, np.pad(found, ((0, 0), (0, COMPONENTS - found.shape[1]))))

    def pool(self, partners: EmbeddedPartners) -> Floats32:
        """Return the similarities, the mean row weighted by similarity, and the row of the nearest partner, (n, P)."""
        rows = np.empty((len(partners.rows), COMPONENTS), np.float32)
        for first in range(0, len(rows), PROJECTED_ROWS):
            here = slice(first, first + PROJECTED_ROWS)
            rows[here] = (partners.rows[here] - self.centre) @ self.directions
        pooled = np.zeros((len(partners.neighbours), POOLED_COLUMNS), np.float32)
        for first in range(0, len(pooled), POOLED_RECORDS):
            here = slice(first, first + POOLED_RECORDS)
            part = partners.neighbours.take(here)
            partner, overall = part.partner, part.overall.astype(np.float64, copy=False)  # (B, K)
            pooled[here, 0], pooled[here, 1] = overall.max(axis=1), overall.mean(axis=1)
            mean = np.einsum("nk,nkc->nc", softmax_weights(overall), rows[partner])
            pooled[here, SIMILARITY_COLUMNS:-COMPONENTS] = mean
            nearest = np.take_along_axis(partner, overall.argmax(axis=1)[:, None], axis=1)[:, 0]
            pooled[here, -COMPONENTS:] = rows[nearest]
        return pooled


def softmax_weights(similarity: Floats) -> Floats:
    """Return weights of the partners of each record that add up to one, (n, K) -> (n, K).

    >>> softmax_weights(np.array([[1.0, 1.0]])).tolist()
    [[0.5, 0.5]]
    """
    weight = np.exp(similarity - similarity.max(axis=1, keepdims=True))
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


# Beside the network of a job


@dataclass(frozen=True, eq=False)
class StackedTrees:
    """Trees beside a network: the weight of the network, and whether both are averaged as logarithms.

    The intervals are those of the network around the common prediction, wider or narrower by the factor ``stretch``,
    such that they contain as many validation records as they should; the log-odds of classes are divided by
    ``temperature``. ``pools`` are those of the lists of which the
    trees see something; none if they see the primary's own columns only.
    """

    model: TreeModel
    weight: float
    log: bool
    stretch: float = 1.0
    pools: tuple[PartnerPool, ...] = ()
    temperature: float = 1.0

    @classmethod
    def fit(
        cls,
        data: PrimaryData,
        split: Split,
        network: tuple[Floats, Floats | None],
        *,
        seed: int,
        log: bool,
        inputs: TreeInputs | None = None,
    ) -> StackedFit | None:
        """Fit trees beside a network's predictions of the validation records, which choose what the trees see.

        Returns None if the validation records give the trees no weight, so that nothing is stored or requested for
        them.

        Parameters
        ----------
        data, split
            The primary's records, with its own columns.
        network
            What the network predicts for the validation records, and its intervals.
        seed
            Random seed of the trees and of the party dropout.
        log
            Whether logarithms of the label are learnt.
        inputs
            What the trees see beside the records' features.
        """
        scale, (values, intervals) = np.log if log else np.asarray, network
        learnt, found = replace(data, labels=scale(data.labels)), np.asarray(scale(values))
        inputs = inputs or TreeInputs(TreeColumns.none(len(learnt.labels)).names)
        fitting = tree_sample(learnt, split, inputs) if len(split.train) > MAX_TREE_RECORDS else (learnt, split, inputs)
        options = [replace(fitting[2], lists=()), fitting[2]] if inputs.lists else [fitting[2]]
        share = min(1.0, MAX_TREE_RECORDS / len(split.train))  # of the validation records as of the training records
        fitted = [_fit_seeing(option, *fitting[:2], seed, share) for option in options]
        if inputs.lists:
            fitted.append(_average_fitted(fitted[0], fitted[1]))
        truth, weights = learnt.labels[split.validation], _weights(data, split.validation)
        # Partners that do not help the trees are not asked for at prediction.
        best = max(fitted, key=lambda option: selection_key(measure(option.trees, truth, data.task_type, weights)))
        weight = choose_weight(found, best.trees, truth, data.task_type, weights)
        if weight == WEIGHTS[-1]:
            return None
        stacked, together = cls(best.model, weight, log, pools=best.pools), blend(weight, found, best.trees)
        if data.task_type is TaskType.CLASSES:
            stacked = replace(stacked, temperature=fit_temperature(together, truth, weights))
        elif intervals is not None:
            widths = half_widths(np.asarray(scale(intervals)))
            stacked = replace(stacked, stretch=interval_stretch(truth - together, widths))
        return StackedFit(stacked, best.refit)

    def columns(self, inputs: TreeInputs) -> TreeColumns:
        """Return what the trees see of records beside their features."""
        return tree_columns(self.pools, inputs)

    def combine(
        self, network: Floats, intervals: Floats | None, features: Any, columns: TreeColumns
    ) -> tuple[Floats, Floats | None]:
        """Return what a network predicts for records with these features, averaged with the trees, and intervals.

        ``columns`` is what :meth:`columns` returns for them.
        """
        scale, unscale = (np.log, np.exp) if self.log else (np.asarray, np.asarray)
        trees = self.model.predict(columns.beside(as_features(features)))
        centre = blend(self.weight, scale(network), trees)
        values = scale_probabilities(np.asarray(unscale(centre)), self.temperature)
        return values, None if intervals is None else stretch_intervals(values, intervals, self.stretch, log=self.log)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and facts that describe it, for :meth:`from_state`."""
        model = self.model
        facts = {"classes": list(model.classes), "n_classes": model.n_classes, "rounds": model.rounds}
        tensors = {**model.trees.tensors(), "ranks": torch.from_numpy(model.ranks)}
        for place, pool in enumerate(self.pools):
            tensors |= {f"{place}.centre": torch.from_numpy(pool.centre)}
            tensors |= {f"{place}.directions": torch.from_numpy(np.ascontiguousarray(pool.directions))}
        facts |= {"lists": len(self.pools), "temperature": self.temperature}
        return tensors, {**facts, "weight": self.weight, "log": self.log, "stretch": self.stretch}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> StackedTrees:
        """Return what :meth:`state` described."""
        ranks, classes = tensors["ranks"].numpy(), tuple(facts["classes"])
        model = TreeModel(BoostedTrees.from_tensors(tensors), ranks, classes, facts["n_classes"], facts["rounds"])
        pools = tuple(
            PartnerPool(tensors[f"{place}.centre"].numpy(), tensors[f"{place}.directions"].numpy())
            for place in range(facts.get("lists", 0))  # trees of version 0.1 see no partner
        )
        temperature = facts.get("temperature", 1.0)  # trees of earlier releases are not calibrated
        return cls(model, facts["weight"], facts["log"], facts["stretch"], pools, temperature)


@dataclass(frozen=True, eq=False)
class StackedFit:
    """Trees beside a network, as the validation records chose and calibrated them; ``refit`` learns these, too."""

    chosen: StackedTrees
    refit: Callable[[], TreeModel]

    @cached_property
    def final(self) -> StackedTrees:
        """The trees that predict all other records: fitted to the training and the validation records."""
        return replace(self.chosen, model=self.refit())


def tree_sample(data: PrimaryData, split: Split, inputs: TreeInputs) -> tuple[PrimaryData, Split, TreeInputs]:
    """Return at most :data:`MAX_TREE_RECORDS` training records, evenly spread, with all validation records."""
    train = _evenly_spread(split.train, MAX_TREE_RECORDS)
    # One test record, because the number of classes is that of all records.
    last = split.test[np.argsort(-data.labels[split.test])[:1]]
    rows, sizes = np.concatenate([train, split.validation, last]), np.cumsum([len(train), len(split.validation)])
    weights = _weights(data, rows)
    some = replace(data, features=as_features(data.features).take(rows), labels=data.labels[rows], weights=weights)
    return some, Split(*np.split(np.arange(len(rows)), sizes)), inputs.take(rows)


def _evenly_spread(rows: AnyArray, count: int) -> AnyArray:
    return rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]


@dataclass(frozen=True, eq=False)
class _FittedTrees:
    """Trees with what they see of partners, and their predictions of the validation records.

    ``refit`` fits them to the training and the validation records.
    """

    model: TreeModel
    pools: tuple[PartnerPool, ...]
    validation: Features
    trees: Floats
    refit: Callable[[], TreeModel]


def _average_fitted(own: _FittedTrees, seeing: _FittedTrees) -> _FittedTrees:
    """Return the mean of trees that see the primary's columns and of trees that see partners too."""

    def average(without: TreeModel, with_partners: TreeModel) -> TreeModel:
        return average_models([_move_columns(without, own.validation, seeing.validation), with_partners])

    def refit() -> TreeModel:
        return average(own.refit(), seeing.refit())

    model = average(own.model, seeing.model)
    return replace(seeing, model=model, trees=model.predict(seeing.validation), refit=refit)


def _move_columns(model: TreeModel, before: Features, after: Features) -> TreeModel:
    """Return trees that see the columns ``before`` as trees that see ``after``, which has more numbers."""
    n_numbers = before.numbers.shape[1]
    added, few = after.numbers.shape[1] - n_numbers, sum(each <= MAX_CATEGORIES for each in before.cardinalities)
    # The partners' columns are the last numbers, after which come the codes of large columns.
    feature = model.trees.feature
    feature = np.where(feature < few + n_numbers, feature, feature + added)
    return replace(model, trees=replace(model.trees, feature=feature))


def _fit_seeing(inputs: TreeInputs, data: PrimaryData, split: Split, seed: int, share: float) -> _FittedTrees:
    """Fit trees to the training records; a ``share`` of the validation records joins them when they are refitted."""
    pools = tuple(PartnerPool.fit(one.rows) for one in inputs.lists if one)
    learnt = _evenly_spread(split.validation, round(share * len(split.validation)))
    columns, rows = tree_columns(pools, inputs), np.concatenate([split.train, learnt])
    lost = np.random.default_rng(seed).random((len(rows), len(pools))) < inputs.dropout

    def without_lost(n_fitted: int) -> PrimaryData:
        fitted, lists = rows[:n_fitted], columns.lists.copy()
        lists[fitted] = np.where(lost[:n_fitted, :, None], np.nan, lists[fitted])
        return replace(data, features=replace(columns, lists=lists).beside(as_features(data.features)))

    chosen = fit_trees(without_lost(len(split.train)), split, seed=seed)
    validation = columns.take(split.validation).beside(as_features(data.features).take(split.validation))

    def refit() -> TreeModel:
        return chosen.refit(without_lost(len(rows)), replace(split, validation=learnt))

    return _FittedTrees(chosen.model, pools, validation, chosen.model.predict(validation), refit)


def tree_columns(pools: Sequence[PartnerPool], inputs: TreeInputs) -> TreeColumns:
    """Return inputs as columns; without pools the trees see no partner."""
    n_records = len(inputs.names)
    lists = np.full((n_records, len(pools), POOLED_COLUMNS), np.nan, np.float32)
    for place, (pool, one) in enumerate(zip(pools, inputs.lists, strict=bool(pools))):
        if one is not None:
            lists[:, place] = pool.pool(one)
    return TreeColumns(inputs.names, lists)
