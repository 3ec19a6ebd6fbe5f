"""Classes predicted from linked records."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin

from fedsim.estimator import checking
from fedsim.estimator.core import LinkedEstimator
from fedsim.estimator.federation import Labels
from fedsim.training import Goal
from fedsim.types import Floats


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

    classes_: NDArray[Any]

    def _labels(self, y: Any, table: pl.DataFrame) -> Labels:
        self.classes_, places = checking.classes(y, table)
        return Labels(places, Goal.CLASSES, checking.label_name(y))

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The most probable class of every record."""
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> Floats:  # noqa: N803
        """Probabilities, one row per record and one column per class."""
        return self._predict(X)
