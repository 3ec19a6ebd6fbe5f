"""FedSimRegressor and FedSimClassifier: scikit-learn estimators with all parties in one process."""

import textwrap
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, replace
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from fedsim import errors, validation
from fedsim.data.features import FeatureRules
from fedsim.data.splits import group_equal_records, group_split
from fedsim.estimator import federation, inputs
from fedsim.estimator.federation import Federation, FederationPlan, TrainingLabels
from fedsim.estimator.inputs import PRIMARY, EstimatorSettings
from fedsim.hyperparameters import TrainingSettings, hyperparameters, refuse_renamed
from fedsim.linkage import Metric
from fedsim.registry import SERVICES
from fedsim.splitnn import methods, party_model
from fedsim.training import Hook, TaskType, explain
from fedsim.training.config import build_config
from fedsim.training.loop import ProgressBar
from fedsim.types import DEFAULT_K, AnyArray, Explanation, Floats, LinkageResult, Split

TRAINING_PARAMETERS = {
    name: parameter.replace(kind=Parameter.KEYWORD_ONLY)
    for name, parameter in signature(TrainingSettings).parameters.items()
}

# The estimators inherit, against our rule, because cloning, parameter search and scikit-learn's own checks look for
# scikit-learn's base classes.


class LinkedEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of the estimators, whose docstrings document the parameters."""

    links_: list[LinkageResult]
    history_: list[dict[str, Any]]
    federation_: Federation
    n_features_in_: int

    def __init__(  # noqa: PLR0913 - scikit-learn takes every parameter by name here
        self,
        secondaries: Sequence[Any] | None = (),
        link_on: Any = (),
        *,
        metric: str | Metric | Sequence[str | Metric] = inputs.AUTO,
        k: int = DEFAULT_K,
        sigma: float = 0.0,
        tau: float | None = None,
        method: str | methods.Method = "fedsim",
        use_identifiers: bool = False,
        kinds: Mapping[str, str] | None = None,
        validation_fraction: float = 0.125,
        validation_split: str = "random",
        random_state: Any = None,
        device: str = "auto",
        tracking: str | None = None,
        verbose: bool = False,
        **training: Any,
    ) -> None:
        self.secondaries = secondaries
        self.link_on = link_on
        self.metric = metric
        self.k = k
        self.sigma = sigma
        self.tau = tau
        self.method = method
        self.use_identifiers = use_identifiers
        self.kinds = kinds
        self.validation_fraction = validation_fraction
        self.validation_split = validation_split
        self.random_state = random_state
        self.device = device
        self.tracking = tracking
        self.verbose = verbose
        refuse_renamed(training)
        if unknown := training.keys() - TRAINING_PARAMETERS.keys():
            raise TypeError(f"{type(self).__name__} has no parameter '{min(unknown)}'; see get_params()")
        for name, parameter in TRAINING_PARAMETERS.items():
            setattr(self, name, training.get(name, parameter.default))

    def fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        *,
        identifiers: Any = None,
        sample_weight: Any = None,
        eval_set: Any = None,
    ) -> Self:
        """Train on the primary's table and its labels; if training fails, the previous model is kept.

        Parameters
        ----------
        X, y
            The primary's table, and one label per record.
        identifiers
            A table of the primary's identifiers, where an earlier step of a pipeline changes or drops those in ``X``.
            With scikit-learn's metadata routing: ``set_fit_request(identifiers=True)``, and likewise for ``predict``.
        sample_weight
            How much each record counts in the loss, in the choice of the best epoch and in the intervals: a record of
            weight 2 counts as two records, and one of weight 0 is ignored. Columns are scaled without weights.
        eval_set
            ``(X, y)`` of the records that choose the best epoch, instead of some of the training records, or a mapping
            with ``X``, ``y`` and any of ``identifiers`` and ``sample_weight``; ``validation_fraction`` then has no
            effect. They are used for nothing else. Their links follow those of the training records in ``links_``.
        """
        fresh, settings = copy(self), inputs.estimator_settings(self)
        records = _labelled_table(fresh, X, y, identifiers, sample_weight, reset=True)
        n_own, name = len(records.table), inputs.label_name(y)
        if eval_set is not None:
            chosen = inputs.read_eval_set(eval_set, needs_identifiers=identifiers is not None)
            records = records.append(_labelled_table(fresh, **chosen, reset=False))
        primary = records.table
        labels = replace(fresh._labels(records.labels, primary), name=name, weights=records.weights)
        tables = inputs.secondary_tables(self.secondaries)
        seed = inputs.draw_seed(self.random_state)
        counted = np.arange(len(primary)) if records.weights is None else np.flatnonzero(records.weights)
        split = Split(counted[counted < n_own], counted[counted >= n_own], np.zeros(0, np.int64))
        if eval_set is None:
            drawn = _validation_split(settings, primary[counted], labels.values[counted], labels.task_type, seed)
            split = Split(counted[drawn.train], counted[drawn.validation], counted[drawn.test])
        method = settings.method if tables else "solo"
        config = build_config(method, settings, seed=seed, device=settings.device, n_train=len(split.train))
        if settings.party_dropout and tables:
            replace(config, party_dropout=settings.party_dropout)  # raises where the method needs every secondary
        linked = config.method.partners is not methods.PartnerRequirement.NONE
        pairs: Sequence[inputs.LinkedColumns] = ()
        if linked:
            pairs = inputs.columns_per_secondary(primary, len(tables), settings.link_on, settings.metric)
        given, tables = tables, inputs.drop_label(tables, name, pairs)
        inputs.warn_of_dropped_label(given, tables)
        linking = tuple(inputs.primary_link_columns(settings.link_on))
        rules = FeatureRules(settings.kinds or {}, identifiers=linking)
        withheld = () if settings.use_identifiers else linking
        plan = FederationPlan(config, tuple(pairs), settings, rules, withheld, refit_trees=eval_set is None)
        inputs.check_kinds(plan.rules.kinds, (primary, tables), plan.identifiers, plan.pairs)
        hooks: list[Hook] = [ProgressBar()] if self.verbose else []
        hooks += [SERVICES["tracking-hook"](settings.tracking)] if settings.tracking else []
        fitted = federation.fit_federation(plan, primary, tables if pairs else [], labels, split, hooks)
        fresh.federation_, fresh.links_, result = fitted
        fresh.history_ = [asdict(epoch) for epoch in result.history]
        self.__dict__ = fresh.__dict__
        return self

    @abstractmethod
    def _labels(self, y: Any, table: pl.DataFrame) -> TrainingLabels:
        """Return the labels in the form that training needs."""

    def _table(self, X: Any, identifiers: Any) -> pl.DataFrame:  # noqa: N803
        check_is_fitted(self, "federation_")
        return inputs.add_identifiers(inputs.check_table(self, X, reset=False), identifiers)

    def _predict(self, X: Any, identifiers: Any) -> tuple[Floats, Floats | None]:  # noqa: N803
        """Link new records to the known secondaries; return numbers and intervals, or probabilities per class."""
        table = self._table(X, identifiers)  # raises if nothing was fitted
        return self.federation_.predict(table)

    def links_for(self, X: Any, *, identifiers: Any = None) -> list[LinkageResult]:  # noqa: N803
        """Return the links of any records, one entry per secondary; ``links_`` has those of training."""
        table = self._table(X, identifiers)
        return self.federation_.links(table)

    @property
    def history_table_(self) -> pl.DataFrame:
        """``history_`` as a table: one row per epoch, one column per figure."""
        check_is_fitted(self, "federation_")
        rows = (
            {**epoch, **{f"validation_{name}": value for name, value in epoch["validation"].items()}}
            for epoch in self.history_
        )
        return pl.DataFrame([{name: value for name, value in row.items() if name != "validation"} for row in rows])

    def find_matches(self, X: Any, *, identifiers: Any = None) -> list[explain.Matches]:  # noqa: N803
        """Return which row of each secondary is chosen as the match of each record, and how certain that is.

        Parameters
        ----------
        X
            Records, as in ``predict``.

        Returns
        -------
        One entry per secondary whose links have a match gate; none where no single partner stands out, as with places.
        """
        table = self._table(X, identifiers)
        return explain.find_matches(self.federation_.model, self.federation_.neighbours(table))

    def explain(self, X: Any, *, identifiers: Any = None) -> list[Explanation]:  # noqa: N803
        """Explain the prediction of every record; print one to read it.

        Parameters
        ----------
        X, identifiers
            Records, as in ``predict``.

        Returns
        -------
        One :class:`fedsim.types.Explanation` per record: the prediction and its interval, the effect of every partner
        record, what would be predicted without each secondary, and the effects of the record's own columns.
        """
        table, classes = self._table(X, identifiers), getattr(self, "classes_", np.zeros(0)).tolist()
        return self.federation_.explain(table, classes)

    def save(self, path: str | Path) -> None:
        """Write the trained model: one folder per party, JSON and safetensors; no party's table is stored."""
        check_is_fitted(self, "federation_")
        federation.save_estimator(Path(path), self)

    @classmethod
    def load(
        cls,
        path: str | Path,
        secondaries: Sequence[Any] = (),
        *,
        method: methods.Method | None = None,
        device: str = "auto",
    ) -> Self:
        """Load the model that :meth:`save` wrote, with the tables of the secondaries.

        ``method`` is required only if the constructor was given a Method object instead of a name.
        """
        found: Self = federation.load_estimator(cls, Path(path), secondaries, method=method, device=device)
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        return tags

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's parameters; the ``repr`` of the list of tables shows no records."""
        parameters: dict[str, Any] = super().get_params(deep)
        tables = parameters["secondaries"]
        if isinstance(tables, list | tuple) and tables and not isinstance(tables, TableList):
            parameters["secondaries"] = TableList(tables)
        return parameters


def _with_training_parameters(function: Any) -> Signature:
    """Return the signature with the training settings by name, because scikit-learn reads parameters from it."""
    found = signature(function)
    named = [one for one in found.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    return found.replace(parameters=[*named, *TRAINING_PARAMETERS.values()])


LinkedEstimator.__init__.__signature__ = _with_training_parameters(LinkedEstimator.__init__)  # type: ignore[attr-defined]


def _labelled_table(
    estimator: LinkedEstimator,
    X: Any,  # noqa: N803
    y: Any,
    identifiers: Any,
    sample_weight: Any,
    *,
    reset: bool,
) -> inputs.LabelledTable:
    table = inputs.add_identifiers(inputs.check_table(estimator, X, reset=reset), identifiers)
    return inputs.LabelledTable(table, y, inputs.record_weights(sample_weight, len(table)))


def _validation_split(
    settings: EstimatorSettings, primary: pl.DataFrame, labels: AnyArray, task_type: TaskType, seed: int
) -> Split:
    """Draw validation records one by one, or so that records with equal identifiers stay together."""
    fraction = validation.validate_number(settings.validation_fraction, "validation_fraction", above=0, below=1)
    rng = party_model.RandomSource(seed, PRIMARY).rng("validation records")

    def one_by_one() -> Split:
        kinds = labels if task_type is TaskType.CLASSES else None
        return inputs.split_by_record(len(primary), fraction, rng, kinds)

    def by_identifiers() -> Split:
        columns = inputs.primary_link_columns(settings.link_on)
        groups = group_equal_records(inputs.select_columns(primary, columns, PRIMARY))
        return group_split(groups, rng, parts=(1 - fraction, fraction, 0))

    ways = {"random": one_by_one, "identifiers": by_identifiers}
    if settings.validation_split not in ways:
        message = f"validation_split='{settings.validation_split}' is unknown; choose {' or '.join(ways)}"
        raise errors.SettingError(message, code="unknown-validation-split", value=settings.validation_split)
    return ways[settings.validation_split]()


class TableList(list[Any]):
    """A list of tables whose ``repr`` shows only sizes, because scikit-learn prints the parameters of estimators."""

    def __repr__(self) -> str:
        sizes = (getattr(table, "shape", ("?", "?")) for table in self)
        return f"[{', '.join('<table of {} records x {} columns>'.format(*size) for size in sizes)}]"


class FedSimRegressor(RegressorMixin, LinkedEstimator):  # type: ignore[misc]
    """Regression on a primary table fuzzily linked to any number of secondary tables.

    Parameters
    ----------
    secondaries : list of tables, default=()
        pandas, polars or Arrow tables with identifiers; without any, the primary trains alone (Solo).
    link_on : list of columns, one such list per secondary, or a mapping from the primary's names to theirs
        The identifiers, in the same order on both sides.
    metric : str, Metric, or one per secondary, default="auto"
        How identifiers are compared: euclidean, great-circle, days, qgram-dice, ..., or a ``WeightedSum``. By default
        latitude and longitude over ground, text by qgram-dice, dates by days, other numbers by euclidean.
    k : int, default=20
        Partners per record.
    sigma, tau : float
        Noise on the similarities, by its scale or by the bound on a greedy attack's success, which assumes normally
        distributed similarities (``fedsim.privacy.bounds``).
    method : str or Method, default="fedsim"
        fedsim, stacked (FedSim beside boosted trees), avgsim, featuresim, top1sim, exact or solo.
    use_identifiers : bool, default=False
        Whether the primary's identifiers are features too.
    kinds : dict from column to "number", "category" or "date", default=None
        The kinds of columns, in any of the tables, whose data type does not determine it.
    validation_fraction : float, default=0.125
        Share of the training records that are used to choose the best epoch. Trees beside the network (method
        stacked) are then trained on them as well.
    validation_split : {"random", "identifiers"}, default="random"
        Whether these are drawn one by one, or so that records with equal identifiers stay together.
    random_state : int, RandomState or None
    device : {"auto", "cpu", "cuda"}
    tracking : str, default=None
        Where training curves go: ``tensorboard:FOLDER``.
    verbose : bool, default=False
        Show a progress bar.
    preset : {"modern", "paper"}, default="modern"
        Networks, optimiser and default sizes.
    TRAINING

    Attributes
    ----------
    links_ : list of LinkageResult
        The links of the training records, one per secondary.
    history_ : list of dict
        One record per epoch; ``history_table_`` is the same as a polars table.
    federation_ : Federation
        The trained networks and every party's preprocessor.
    n_features_in_, feature_names_in_
        Columns of the primary's table, identifiers included.

    Examples
    --------
    >>> import numpy as np
    >>> from fedsim.data.synthetic import city
    >>> town = city(np.random.default_rng(0), flats=60, rentals=40)
    >>> flats, price = town.flats.drop("price"), town.flats["price"]
    >>> model = FedSimRegressor([town.rentals], ["lat", "lon"], k=5, epochs=1, random_state=0).fit(flats, price)
    >>> model.predict(flats[:3]).shape
    (3,)
    """

    def _labels(self, y: Any, table: pl.DataFrame) -> TrainingLabels:
        return TrainingLabels(inputs.regression_labels(y, table), TaskType.NUMBERS, inputs.label_name(y))

    def predict(self, X: Any, *, identifiers: Any = None) -> Floats:  # noqa: N803
        """Return a number per record, in the unit of the labels."""
        return self._predict(X, identifiers)[0]

    def predict_interval(self, X: Any, *, identifiers: Any = None) -> Floats:  # noqa: N803
        """Return an array (n, 2): lower and upper end of an interval that contains the label 9 times out of 10.

        Widths are calibrated on the validation records and grow where the members disagree.

        Parameters
        ----------
        X, identifiers
            Records, as in ``predict``.

        Examples
        --------
        >>> import numpy as np
        >>> from fedsim.data.synthetic import city
        >>> town = city(np.random.default_rng(0), flats=60, rentals=40)
        >>> flats, price = town.flats.drop("price"), town.flats["price"]
        >>> model = FedSimRegressor([town.rentals], ["lat", "lon"], k=5, epochs=1, random_state=0).fit(flats, price)
        >>> model.predict_interval(flats[:3]).shape
        (3, 2)
        >>> lower, upper = model.predict_interval(flats[:3]).T
        >>> bool((lower < upper).all())
        True
        """
        intervals = self._predict(X, identifiers)[1]
        if intervals is None:
            message = "this model was saved without intervals, by an earlier release; train it again"
            raise errors.FileError(message, code="no-intervals")
        return intervals


def _describe_training_parameters() -> str:
    lines = []
    for name, rule in hyperparameters().items():
        meaning = textwrap.wrap(rule.meaning.replace("`", "``"), 100, initial_indent=" " * 8, subsequent_indent=" " * 8)
        lines += [f"    {name} : {rule.kind.__name__}, default=None", *meaning]
    return "\n".join(lines)


FedSimRegressor.__doc__ = (FedSimRegressor.__doc__ or "").replace("    TRAINING", _describe_training_parameters())


class FedSimClassifier(ClassifierMixin, LinkedEstimator):  # type: ignore[misc]
    """Classification on a primary table fuzzily linked to any number of secondary tables.

    Parameters and attributes are those of :class:`fedsim.estimator.FedSimRegressor`; ``classes_`` holds the classes,
    which may be numbers or text, in the order of the columns of ``predict_proba``.

    Examples
    --------
    >>> from fedsim.data.synthetic import city
    >>> town = city(np.random.default_rng(0), flats=60, rentals=40)
    >>> flats, dear = town.flats.drop("price"), town.flats["price"] > 500_000
    >>> model = FedSimClassifier([town.rentals], ["lat", "lon"], k=5, epochs=1, random_state=0).fit(flats, dear)
    >>> model.predict_proba(flats[:3]).shape
    (3, 2)
    """

    classes_: AnyArray

    def _labels(self, y: Any, table: pl.DataFrame) -> TrainingLabels:
        self.classes_, places = inputs.class_labels(y, table)
        return TrainingLabels(places, TaskType.CLASSES, inputs.label_name(y))

    def predict(self, X: Any, *, identifiers: Any = None) -> AnyArray:  # noqa: N803
        """Return the most probable class of every record."""
        best = self.predict_proba(X, identifiers=identifiers).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any, *, identifiers: Any = None) -> Floats:  # noqa: N803
        """Return probabilities, one row per record and one column per class."""
        return self._predict(X, identifiers)[0]
