"""scikit-learn estimators over all parties in one process."""

from fedsim.estimator.estimators import FedSimClassifier, FedSimRegressor

__all__ = ["FedSimClassifier", "FedSimRegressor"]
