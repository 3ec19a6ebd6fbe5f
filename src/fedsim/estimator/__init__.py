"""scikit-learn estimators over all parties in one process."""

from __future__ import annotations

from fedsim.estimator.classifier import FedSimClassifier
from fedsim.estimator.regressor import FedSimRegressor

__all__ = ["FedSimClassifier", "FedSimRegressor"]
