"""Calibration of the match gate: its probabilities compared with true matches, where these are known."""

from dataclasses import dataclass

import numpy as np

from fedsim.training.explain import Matches
from fedsim.types import Integers
from fedsim_lab.result_table import ResultTable


@dataclass(frozen=True)
class ReliabilityBin:
    """Pairs whose probability lies in one range: how many, their mean probability, and the share of true matches."""

    pairs: int
    predicted: float
    true: float


@dataclass(frozen=True)
class MatchCalibration:
    """Reliability of the match gate.

    ``error`` is the mean difference between probability and share of true matches over all pairs; ``matched`` and
    ``listed`` are the mean probability of a match and the true share of records whose match is in the list; ``right``
    is the share of records with the right decision: the true match, or no match if the list contains none.
    """

    bins: tuple[ReliabilityBin, ...]
    error: float
    matched: float
    listed: float
    right: float


def calibrate_matches(matches: Matches, truth: Integers, n_bins: int = 10) -> MatchCalibration:
    """Compare the probabilities of a match gate with the truth.

    Parameters
    ----------
    matches
        The gate's output for some records.
    truth
        The row of each record's true match in the secondary, (n,), or -1 if it has none.
    n_bins
        Number of ranges of equal width.

    Examples
    --------
    >>> found = Matches("register", np.array([[4, 2], [3, 1]]), np.array([[0.9, 0.0], [0.1, 0.2]]))
    >>> calibrate_matches(found, np.array([4, -1]), n_bins=2).right
    1.0
    """
    true = (matches.partner == truth[:, np.newaxis]) & (truth[:, np.newaxis] >= 0)  # (n, K)
    place = np.minimum((matches.probability * n_bins).astype(np.int64), n_bins - 1)
    bins = []
    for one in range(n_bins):
        here = place == one
        if here.any():
            predicted, share = float(matches.probability[here].mean()), float(true[here].mean())
            bins.append(ReliabilityBin(int(here.sum()), predicted, share))
    listed = true.any(axis=1)
    sizes = np.array([part.pairs for part in bins])
    gaps = np.array([abs(part.predicted - part.true) for part in bins])
    return MatchCalibration(
        bins=tuple(bins),
        error=float((sizes * gaps).sum() / sizes.sum()),
        matched=float(1.0 - matches.unmatched.mean()),
        listed=float(listed.mean()),
        right=float((matches.taken == np.where(listed, truth, -1)).mean()),
    )


def calibration_table(found: MatchCalibration, title: str) -> ResultTable:
    """Show the reliability of a match gate as a table."""
    rows = tuple((f"{part.pairs:,}", f"{part.predicted:.3f}", f"{part.true:.3f}") for part in found.bins)
    return ResultTable(title, ("pairs", "probability of a match", "true matches"), rows)
