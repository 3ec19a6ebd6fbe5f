"""Train a model, restore one from its weights, and predict with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedsim.errors import InputError
from fedsim.splitnn import Features, layers, methods, party_model, secondary_model
from fedsim.training import data, loop
from fedsim.training.config import Config
from fedsim.training.data import Metrics, NeighbourList, PrimaryData, SecondaryData, Target
from fedsim.training.loop import Epoch, History, Hook, TrainingOutline, TrainingProgress
from fedsim.training.primary_steps import PartnerList, Primary, PrimaryRecords, arrange_lists
from fedsim.types import Floats, Links, Split


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model, ready to predict and to be explained.

    Parameters
    ----------
    config
        The configuration it was trained with.
    target
        The scaling of labels and predictions.
    primary
        The primary's share of the model.
    groups
        The secondaries that hold the rows of each list.
    columns
        The primary's numbers of columns: numbers and codes.
    name
        Name of the primary.
    """

    config: Config
    target: Target
    primary: Primary
    groups: tuple[tuple[secondary_model.Secondary, ...], ...]
    columns: tuple[int, int]
    name: str = "primary"

    def predict(self, features: Features | NDArray[Any], lists: Sequence[Links]) -> Floats:
        """Predict new primary records.

        Parameters
        ----------
        features
            Their features, with the columns of training.
        lists
            Their partners in every list, in the order of training.

        Returns
        -------
        Numbers in the user's unit, (n,), or probabilities per class, (n, classes).
        """
        return self.predict_with_intervals(features, lists)[0]

    def predict_with_intervals(
        self, features: Features | NDArray[Any], lists: Sequence[Links]
    ) -> tuple[Floats, Floats | None]:
        """Predict as :meth:`predict` does, with lower and upper end of an interval for each number, (n, 2).

        The intervals contain 90 % of the labels of new records like those of training (``IntervalWidth``). Classes have
        none, nor have models of version 0.1.
        """
        features = data.as_features(features)
        if not len(features):
            raise InputError(f"{self.name} has no records to predict; give at least one", code="no-records")
        records = self.records(features, lists)
        rows = np.arange(len(records.features))
        outputs, scores = self.primary.predict(records, rows)
        intervals = self.target.decode_intervals(outputs, self.primary.spread(scores))
        return self.target.decode_predictions(outputs), intervals

    def records(self, features: Features, lists: Sequence[Links]) -> PrimaryRecords:
        """Return new records as the primary's network takes them: checked, in the method's order, on the device."""
        features.check(self.name)
        if features.columns != self.columns:
            raise InputError(
                "{} has {} columns of numbers and {} of codes; the model was trained on {} and {}".format(
                    self.name, *features.columns, *self.columns
                ),
                code="other-columns",
            )
        return PrimaryRecords(
            layers.FeatureTensors.of(features, self.primary.model.device), self.arrange(lists, len(features))
        )

    def arrange(self, lists: Sequence[Links], n_records: int) -> tuple[PartnerList, ...]:
        """Return lists of partners as the network takes them: checked, in the method's order, on the device."""
        if len(lists) != len(self.groups):
            message = f"{len(lists)} lists of partners given; the model was trained on {len(self.groups)}"
            raise InputError(message, code="other-lists")
        paired = [NeighbourList(neighbours, holders) for neighbours, holders in zip(lists, self.groups, strict=True)]
        data.check_lists(paired, n_records, self.config.method.partners)
        rng = party_model.RandomSource(self.config.seed, self.name).rng("order of new records")
        return arrange_lists(paired, self.config.method, rng, self.primary.model.device)

    def parts(self) -> dict[str, party_model.Weights]:
        """Return the weights of the primary and of every secondary in this process, by party."""
        holders = [holder for group in self.groups for holder in group]
        local = {holder.name: holder.model for holder in holders if isinstance(holder, secondary_model.LocalSecondary)}
        return {name: model.network.state_dict() for name, model in {self.name: self.primary.model, **local}.items()}


def restore_model(
    config: Config,
    target: Target,
    columns: Features,
    lists: Sequence[NeighbourList],
    weights: Mapping[str, Tensor],
    name: str = "primary",
) -> Model:
    """Restore a trained model from its weights, without the data it was trained on.

    Parameters
    ----------
    config, target
        Those of the trained model.
    columns
        The primary's columns; only shapes and ``spread`` count (``FeaturePreprocessor.without_records``).
    lists
        Holders with restored weights; only the shapes of the lists count (``Links.without_records``).
    weights
        The primary's weights.
    name
        Name of the primary.
    """
    device = party_model.resolve_device(config.device)
    arranged = arrange_lists(lists, config.method, party_model.RandomSource(config.seed, name).rng("order"), device)
    shapes = tuple(
        # Models of version 0.1 have no match gate.
        replace(shape, match=any(name.endswith(f"lists.{place}.match.log_odds") for name in weights))
        for place, shape in enumerate(loop.branch_shapes(arranged, np.zeros(0, dtype=np.int64)))
    )
    model = loop.build_primary_model(columns, shapes, target.task, config, name)
    model.fill(weights)
    groups = tuple(entry.holders for entry in lists)
    return Model(config, target, Primary(model, target.task, config.party_dropout), groups, columns.columns, name)


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """What training returns.

    Parameters
    ----------
    model
        The trained model, with the weights of the best epoch.
    history, best
        All epochs, and the best one.
    metrics, predictions
        Of the validation and test rows; predictions in the order of the split's rows, also of those without a label.
        Probabilities are calibrated, while the history has those of the network.
    intervals
        Lower and upper ends around these predictions, (n, 2) each; empty for classes.
    """

    model: Model
    history: History
    best: Epoch
    metrics: dict[str, Metrics]
    predictions: dict[str, Floats]
    intervals: dict[str, Floats] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, party_model.Weights]:
        """The weights of every party in this process, by party."""
        return self.model.parts()


def train(
    primary: PrimaryData,
    secondaries: Sequence[SecondaryData],
    split: Split,
    config: Config,
    *,
    folder: Path | str | None = None,
    hooks: Sequence[Hook] = (),
) -> TrainingResult:
    """Train with all parties in this process, keep the best validation epoch, and only then use the test rows.

    Parameters
    ----------
    primary, secondaries
        The parties' arrays.
    split
        Rows of the primary for training, validation and test; test rows may be missing.
    config
        Method, networks, optimiser and length of the run.
    folder
        Where to write a log and checkpoints, one subfolder per party. Called again after a kill, training continues
        from the last checkpoint and ends with the same weights, bit for bit.
    hooks
        Called while training; see :class:`Hook`.

    Returns
    -------
    The trained model with its history, metrics and predictions.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> split = Split(np.arange(40), np.arange(40, 50), np.arange(50, 60))
    >>> partner, similarity = rng.integers(0, 30, (60, 3)), rng.normal(size=(60, 3))
    >>> result = train(
    ...     PrimaryData(rng.normal(size=(60, 4)), rng.normal(size=60)),
    ...     [SecondaryData(rng.normal(size=(30, 2)), partner, similarity)],
    ...     split,
    ...     Config(epochs=2, device="cpu"),
    ... )
    >>> [epoch.number for epoch in result.history], sorted(result.metrics)
    ([1, 2], ['test', 'validation'])
    """
    split = _integer_rows(split)
    data.check_names([primary.name, *(secondary.name for secondary in secondaries)])
    used = () if config.method.partners is methods.PartnerRequirement.NONE else secondaries
    lists = loop.start_local_secondaries(used, loop.training_settings(config, split, folder))
    return train_with(primary, lists, split, config, folder=folder, hooks=hooks)


def train_with(
    primary: PrimaryData,
    lists: Sequence[NeighbourList],
    split: Split,
    config: Config,
    *,
    folder: Path | str | None = None,
    hooks: Sequence[Hook] = (),
) -> TrainingResult:
    """Train as :func:`train` does, with secondaries in this process or elsewhere.

    Every call is a new attempt: all parties start anew and continue from the last checkpoint in the folder. The model
    keeps using these holders: another attempt with them changes what it predicts.

    Parameters
    ----------
    primary, split, config, folder, hooks
        As in :func:`train`; with a folder, every holder must save checkpoints too.
    lists
        The lists of partners, with the parties that hold their rows.

    Returns
    -------
    The trained model with its history, metrics and predictions.
    """
    split = _integer_rows(split)
    context = loop.training_settings(config, split, folder)
    used = loop.select_lists(primary, lists, split, config)
    for holder in [holder for entry in used for holder in entry.holders]:
        holder.begin(context.total_steps)
    job = loop.prepare_job(primary, used, split, context, hooks)
    progress = job.checkpoints.restore() if job.checkpoints else TrainingProgress()
    device, description = job.primary.model.device.type, party_model.describe(config)
    outline = TrainingOutline(config.epochs, job.steps_per_epoch, len(progress.history), device, description)
    if job.journal:
        job.journal.begin({"device": device, "config": description}, progress.history)
    for hook in hooks:
        hook.started(outline)
    try:
        history, best = loop.run_epochs(job, progress)
        parts = {"validation": split.validation, "test": split.test}
        parts = {name: rows for name, rows in parts.items() if len(rows)}
        rows_of = parts | ({"unlabelled": split.unlabelled} if len(split.unlabelled) else {})
        outputs = {name: job.primary.predict(job.records, rows) for name, rows in rows_of.items()}
        found = {name: (values, job.primary.spread(scores)) for name, (values, scores) in outputs.items()}
        weights = primary.weights_of(split.validation)
        target = job.target.calibrate(*found["validation"], primary.labels[split.validation], weights)
        predictions = {name: target.decode_predictions(values) for name, (values, _) in found.items()}
        metrics = {
            name: target.measure(predictions[name], primary.labels[rows], primary.weights_of(rows))
            for name, rows in parts.items()
        }
        if job.journal:
            job.journal.add("end", {"best_epoch": best.number, "metrics": metrics})
        for hook in hooks:
            hook.ended(metrics)
    except BaseException:
        for hook in hooks:
            hook.failed()
        raise
    groups = tuple(partners.holders for partners in job.records.lists)
    model = Model(config, target, job.primary, groups, data.as_features(primary.features).columns, primary.name)
    ends = {name: target.decode_intervals(*part) for name, part in found.items()}
    intervals = {name: part for name, part in ends.items() if part is not None}
    return TrainingResult(model, history, best, metrics, predictions, intervals)


def _integer_rows(split: Split) -> Split:
    """Convert row numbers to the one type that torch takes; the checks refuse anything but integers."""
    parts = [np.asarray(rows) for rows in (split.train, split.validation, split.test, split.unlabelled)]
    return Split(*(rows.astype(np.int64) if np.issubdtype(rows.dtype, np.integer) else rows for rows in parts))
