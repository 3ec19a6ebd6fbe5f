"""Small made-up parties for the tests of networks and training."""

from __future__ import annotations

import numpy as np
import torch

from fedsim.splitnn import AvgSim, Exact, Features, FeatureSim, FedSim, Solo, Top1Sim
from fedsim.splitnn.gates import AttentionMerge, MatchGate
from fedsim.splitnn.layers import Local, Piecewise
from fedsim.splitnn.party_model import AdamW
from fedsim.training import Config, PrimaryData, SecondaryData, StandardLabel, TaskType
from fedsim.types import Split
from fedsim_lab.ablations import MeanMerge, PerceptronMerge, Shuffled, SimilarityAsWeight
from fedsim_lab.paper_networks import ConvolutionMerge
from fedsim_lab.paper_preset import Lamb

torch.set_num_threads(1)  # the same bits in every run need a fixed number of threads; and the tests run side by side

N_RECORDS, K = 60, 4
CONVOLUTION = ConvolutionMerge(channels=2, kernel=3, hidden=6, dropout=0.25)
METHODS = {
    "fedsim": FedSim(hidden=6, outputs=3, merge=CONVOLUTION),
    "fedsim without weight gate": FedSim(hidden=6, outputs=3, merge=CONVOLUTION, weight=SimilarityAsWeight()),
    "fedsim without sort gate": FedSim(hidden=6, outputs=3, merge=CONVOLUTION, order=Shuffled()),
    "fedsim with perceptron": FedSim(hidden=6, outputs=3, merge=PerceptronMerge((7, 5), 0.25)),
    "fedsim with attention": FedSim(
        hidden=6,
        outputs=3,
        similarity_bins=3,
        merge=AttentionMerge(heads=2, channels=2, kernel=3, hidden=(6, 5), dropout=0.25),
    ),
    "fedsim with match gate": FedSim(hidden=6, outputs=3, merge=CONVOLUTION, match=MatchGate(5, 0.0)),
    "fedsim with attention and match gate": FedSim(
        hidden=6,
        outputs=3,
        similarity_bins=3,
        primary_in_pairs=False,
        merge=AttentionMerge(heads=2, channels=2, kernel=3, hidden=(6, 5), dropout=0.25),
        match=MatchGate(5, 0.0),
    ),
    "avgsim": AvgSim(6),
    "featuresim": FeatureSim(6),
    "top1sim": Top1Sim(6),
    "exact": Exact(6),
    "solo": Solo((6, 5)),
}
MEAN = FedSim(hidden=6, outputs=1, merge=MeanMerge())  # its outputs are those of the task
PLAIN = Local(hidden=(5,), cut=4)
ENCODED = Local(encoding=Piecewise(bins=3, code_width=2), hidden=(5,), cut=4)


def small_config(method=METHODS["fedsim"], **changes) -> Config:
    usual = {"local": PLAIN, "optimiser": Lamb(), "epochs": 2, "batch": 16, "device": "cpu"}
    return Config(**{"method": method, **usual, **changes})


def encoded_config(method=METHODS["fedsim with attention"], **changes) -> Config:
    return small_config(method, **{"local": ENCODED, "optimiser": AdamW(), "label": StandardLabel(), **changes})


def small_features(n_records, n_columns, seed) -> Features:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 3, (n_records, 1))
    return Features(rng.normal(size=(n_records, n_columns)), codes, (3,))


def small_list(n_candidates, seed, k=K):
    rng = np.random.default_rng(seed)
    partner = rng.random((N_RECORDS, n_candidates)).argsort(axis=1)[:, :k]
    return partner, rng.normal(size=(N_RECORDS, k))


def small_fields(n_candidates, seed, k=K, n_fields=3):
    """A list with several similarities per pair, of which some are missing."""
    rng = np.random.default_rng(seed)
    partner = rng.random((N_RECORDS, n_candidates)).argsort(axis=1)[:, :k]
    similarity = rng.normal(size=(N_RECORDS, k, n_fields))
    similarity[rng.random(similarity.shape) < 0.2] = np.nan
    similarity[:, :, 0] = rng.normal(size=(N_RECORDS, k))
    return partner, similarity


def small_primary(classes=1, seed=0) -> PrimaryData:
    rng = np.random.default_rng(seed + 100)
    features = small_features(N_RECORDS, 3, seed)
    if classes == 1:
        return PrimaryData(features, features.numbers[:, 0] * 10 + rng.normal(size=N_RECORDS))
    return PrimaryData(features, np.arange(N_RECORDS) % classes + 5, TaskType.CLASSES)


def small_secondaries(n_lists=1) -> list[SecondaryData]:
    """One list; two lists; or two lists and a third party aligned with the first."""
    first = SecondaryData(small_features(9, 2, 1), *small_list(9, 2), name="first")
    second = SecondaryData(small_features(7, 4, 3), *small_list(7, 4, k=3), name="second")
    third = SecondaryData(small_features(9, 3, 5), name="third", aligned_with="first")
    return [[first], [first, second], [first, second, third]][n_lists - 1]


SPLIT = Split(np.arange(0, 40), np.arange(40, 50), np.arange(50, 60))
