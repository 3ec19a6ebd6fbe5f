"""What both estimators share: parameters, links, preparation, training, prediction.

They inherit from scikit-learn's base classes, against our rule to inherit from nothing: cloning, parameter search and
scikit-learn's own checks look for those classes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import polars as pl
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from fedsim.data.features import Rules
from fedsim.data.splits import equal_records
from fedsim.estimator import checking, validation
from fedsim.estimator.federation import Federation, Labels, Plan, fit_federation
from fedsim.estimator.folder import read_folder, write_folder
from fedsim.estimator.linking import Asked
from fedsim.estimator.pairs import PRIMARY, check_kinds, chosen, our_columns, pairs_for, tables_of
from fedsim.estimator.saving import restored, stored
from fedsim.estimator.settings import Settings, seed_from, settings_of
from fedsim.linkage import Metric
from fedsim.splitnn.below import one_of
from fedsim.splitnn.chance import Chance
from fedsim.splitnn.method import Method, Partners
from fedsim.training import Goal
from fedsim.training.choices import Deviations, config_for
from fedsim.training.hooks.progress import ProgressBar
from fedsim.types import Floats, Links, Split


class LinkedEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of the estimators; their docstrings say what the parameters mean."""

    links_: list[Links]
    history_: list[dict[str, Any]]
    federation_: Federation
    n_features_in_: int

    def __init__(  # noqa: PLR0913 - scikit-learn takes every parameter by name here
        self,
        secondaries: Sequence[Any] | None = (),
        link_on: Any = (),
        *,
        metric: str | Metric | Sequence[str | Metric] = "euclidean",
        k: int = 20,
        sigma: float = 0.0,
        tau: float | None = None,
        method: str | Method = "fedsim",
        preset: str = "modern",
        use_identifiers: bool = False,
        kinds: Mapping[str, str] | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        patience: int | None = None,
        validation_fraction: float = 0.125,
        validation_split: str = "random",
        random_state: Any = None,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.secondaries = secondaries
        self.link_on = link_on
        self.metric = metric
        self.k = k
        self.sigma = sigma
        self.tau = tau
        self.method = method
        self.preset = preset
        self.use_identifiers = use_identifiers
        self.kinds = kinds
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.validation_split = validation_split
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Train on the primary's table and its labels; a training that fails leaves what was learnt before."""
        fresh = copy(self)
        fresh._fit(X, y)
        self.__dict__ = fresh.__dict__
        return self

    @abstractmethod
    def _labels(self, y: Any, table: pl.DataFrame) -> Labels:
        """The labels as training takes them."""

    def _fit(self, X: Any, y: Any) -> None:  # noqa: N803
        """Split off validation records, then link, prepare and train."""
        primary = checking.training_table(self, X)
        labels, settings, tables = self._labels(y, primary), settings_of(self), tables_of(self.secondaries)
        plan = _plan(settings, len(tables), seed_from(self.random_state))
        check_kinds(plan.rules.kinds, (primary, tables), plan.identifiers, plan.pairs)
        split = _split(settings, primary, labels, plan.config.seed)
        hooks = [ProgressBar()] if self.verbose else []
        fitted = fit_federation(plan, primary, tables if plan.pairs else [], labels, split, hooks)
        self.federation_, self.links_, result = fitted
        self.history_ = [asdict(epoch) for epoch in result.history]

    def _predict(self, X: Any) -> Floats:  # noqa: N803
        """Numbers, or probabilities per class; new records are linked to the known secondaries first."""
        check_is_fitted(self, "federation_")
        return self.federation_.predict(checking.known_table(self, X))

    def save(self, path: str | Path) -> None:
        """Write the trained model: one folder per party, JSON and safetensors; no party's table is stored."""
        check_is_fitted(self, "federation_")
        write_folder(Path(path), stored(self))

    @classmethod
    def load(
        cls, path: str | Path, secondaries: Sequence[Any] = (), *, method: Method | None = None, device: str = "auto"
    ) -> Self:
        """The model that :meth:`save` wrote; the secondaries bring their tables again.

        ``method`` is needed only where the constructor was given an object instead of a word.
        """
        found: Self = restored(cls, read_folder(Path(path)), secondaries, {"method": method, "device": device})
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        return tags

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's parameters; the tables come in a list whose ``repr`` shows no record."""
        parameters: dict[str, Any] = super().get_params(deep)
        tables = parameters["secondaries"]
        if isinstance(tables, list | tuple) and tables and not isinstance(tables, Tables):
            parameters["secondaries"] = Tables(tables)
        return parameters


def _plan(settings: Settings, n_secondaries: int, seed: int) -> Plan:
    deviations = Deviations(settings.epochs, settings.batch_size, settings.learning_rate, settings.patience)
    method = settings.method if n_secondaries else "solo"
    config = config_for(settings.preset, method, deviations, seed=seed, device=settings.device)
    linked = config.method.partners is not Partners.NONE
    return Plan(
        config=config,
        pairs=tuple(pairs_for(n_secondaries, settings.link_on, settings.metric)) if linked else (),
        asked=Asked(settings.k, settings.sigma, settings.tau),
        rules=Rules(settings.kinds or {}),
        identifiers=() if settings.use_identifiers else tuple(our_columns(settings.link_on)),
    )


def _split(settings: Settings, primary: pl.DataFrame, labels: Labels, seed: int) -> Split:
    """Validation records, drawn one by one or by place, name or whatever identifies them."""
    validation.check_fraction(settings.validation_fraction)
    rng = Chance(seed, PRIMARY).rng("validation records")
    by_identifiers = one_of({"random": False, "identifiers": True}, settings.validation_split, "validation_split")
    if by_identifiers:
        groups = equal_records(chosen(primary, our_columns(settings.link_on), PRIMARY))
        return validation.by_group(groups, settings.validation_fraction, rng)
    kinds = labels.values if labels.goal is Goal.CLASSES else None
    return validation.by_record(len(primary), settings.validation_fraction, rng, kinds)


class Tables(list[Any]):
    """A list of tables that shows their sizes alone: scikit-learn prints parameters wherever an estimator is shown."""

    def __repr__(self) -> str:
        sizes = (getattr(table, "shape", ("?", "?")) for table in self)
        return f"[{', '.join('<table of {} records x {} columns>'.format(*size) for size in sizes)}]"
