"""Numbers predicted from linked records."""

from __future__ import annotations

from typing import Any

import polars as pl
from sklearn.base import RegressorMixin

from fedsim.estimator import checking
from fedsim.estimator.core import LinkedEstimator
from fedsim.estimator.federation import Labels
from fedsim.training import Goal
from fedsim.types import Floats


class FedSimRegressor(RegressorMixin, LinkedEstimator):  # type: ignore[misc]
    """Regression on a primary table fuzzily linked to any number of secondary tables.

    Parameters
    ----------
    secondaries : list of tables, default=()
        pandas, polars or Arrow, each with its identifiers; without any, the primary learns alone (Solo).
    link_on : list of columns, one such list per secondary, or a mapping from the primary's names to theirs
        The identifiers, in the same order on both sides.
    metric : str, Metric, or one per secondary, default="euclidean"
        How identifiers are compared: euclidean, great-circle, days, levenshtein, ..., or a ``WeightedSum``.
    k : int, default=20
        Partners per record.
    sigma, tau : float
        Noise on the similarities, by its scale or by the bound on an attack's success (``fedsim.privacy.bounds``).
    method : str or Method, default="fedsim"
        fedsim, avgsim, featuresim, top1sim, exact, combine or solo.
    preset : {"modern", "paper"}, default="modern"
    use_identifiers : bool, default=False
        Whether the primary's identifiers are features of its own as well.
    kinds : dict from column to "number", "category" or "date", default=None
        What columns hold where their type does not say it, in any of the tables.
    epochs, batch_size, learning_rate, patience : default=None
        As the preset has them; without patience all epochs run and the best one is kept.
    validation_fraction : float, default=0.125
        Share of the training records set aside to choose the best epoch.
    validation_split : {"random", "identifiers"}, default="random"
        Whether they are drawn one by one, or so that records with equal identifiers stay together.
    random_state : int, RandomState or None
    device : {"auto", "cpu", "cuda"}
    verbose : bool, default=False
        Show a progress bar.

    Attributes
    ----------
    links_ : list of Links
        The links of the training records, one per secondary.
    history_ : list of dict
        One record per epoch.
    federation_ : Federation
        The trained networks and every party's preparation.
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

    def _labels(self, y: Any, table: pl.DataFrame) -> Labels:
        return Labels(checking.numbers(y, table), Goal.NUMBERS, checking.label_name(y))

    def predict(self, X: Any) -> Floats:  # noqa: N803
        """A number per record, in the unit of the labels."""
        return self._predict(X)
