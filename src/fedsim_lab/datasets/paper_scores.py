"""The scores of the paper's table 1 and of its table on random common features."""

from collections.abc import Mapping

from fedsim_lab.datasets.dataset import PaperScore

METHODS = ("Solo", "Exact", "Top1Sim", "FeatureSim", "AvgSim", "w/o weight", "w/o sort", "w/o CNN", "FedSim")


def _scores(*pairs: tuple[float, float] | None) -> Mapping[str, PaperScore]:
    return {method: PaperScore(*pair) for method, pair in zip(METHODS, pairs, strict=True) if pair}


HOUSE = _scores(
    (58.31, 0.28), None, (58.54, 0.35), (66.39, 0.15), (51.92, 0.65),
    (42.82, 0.20), (52.14, 0.58), (42.62, 0.20), (42.12, 0.23),
)  # fmt: skip
TAXI = _scores(
    (272.83, 1.50), None, (256.19, 1.39), (273.29, 0.37), (239.85, 0.40),
    (236.79, 0.29), (238.30, 0.81), (235.97, 0.42), (235.67, 0.27),
)  # fmt: skip
HDB = _scores(
    (29.75, 0.15), None, (31.56, 0.21), (37.39, 0.29), (34.12, 0.19),
    (27.18, 0.08), (36.35, 0.42), (27.76, 0.13), (27.13, 0.06),
)  # fmt: skip
GAME = _scores(
    (85.27, 0.29), (89.25, 0.12), (92.71, 0.08), (91.13, 0.23), (90.84, 0.14),
    (92.79, 0.13), (92.79, 0.10), (92.50, 0.12), (92.88, 0.11),
)  # fmt: skip
COMPANY = _scores(
    (42.67, 0.66), (44.44, 1.95), (42.84, 0.77), (39.24, 1.80), (38.19, 0.91),
    (41.00, 1.19), (38.28, 1.56), (39.63, 1.31), (37.08, 0.61),
)  # fmt: skip
SKLEARN_RANDOM = {
    "Solo": PaperScore(60.76, 0.41),
    "Top1Sim": PaperScore(92.15, 0.33),
    "Exact": PaperScore(92.15, 0.33),
    "Combine": PaperScore(94.70, 0.58),
    "FedSim, 50": PaperScore(87.79, 0.77),
    "FedSim, 30": PaperScore(92.80, 0.61),
}
