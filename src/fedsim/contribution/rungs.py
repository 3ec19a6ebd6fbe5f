"""The rungs of the ladder: model variants, their training configuration, and training them; needs torch and numpy only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.contribution.arrays import LinkedSecondary, SplitArrays
from fedsim.contribution.result_store import ResultStore
from fedsim.errors import SettingError
from fedsim.registry import METHODS, PRESETS
from fedsim.splitnn.gates import PerceptronMerge, Shuffled, SimilarityAsWeight
from fedsim.splitnn.layers import Features
from fedsim.splitnn.methods import FedSim, Method
from fedsim.training import Config, PrimaryData, SecondaryData, TaskType, TrainingResult, train
from fedsim.training.config import ConfigOverrides, build_config
from fedsim.training.data import as_features
from fedsim.training.labels import Metrics
from fedsim.training.loop import Hook
from fedsim.validation import validate_integer
from fedsim.version import VERSION

# One training of an experiment: which method, on which inputs, with which settings


PARTNERS = ("real", "placebo", "shuffled")
INPUTS = ("features", "identifiers", "secondary")


@dataclass(frozen=True)
class Rung:
    """``preset`` and ``method`` are words of ``choices.py``; what is ``None`` is as the preset has it.

    ``partner``: ``placebo`` has the partner's feature rows shuffled and its links kept, ``shuffled`` gives every record
    the links of another. ``inputs``: the primary's features, these and its own ``identifiers``, or, for a method
    without partners, the features of the most similar record of the ``secondary`` alone. ``pieces``, such as ``13``:
    the secondary's columns are cut into three parties, and these take part (paper, appendix "Multi-Party FedSim").
    ``hidden`` is the width of the hidden layer of every party's local network.
    """

    key: str
    name: str
    method: str
    preset: str = "modern"
    partner: str = "real"
    inputs: str = "features"
    pieces: str = ""
    k: int | None = None
    epochs: int | None = None
    batch: int | None = None
    rate: float | None = None
    patience: int | None = None
    hidden: int | None = None
    decay: float | None = None

    def __post_init__(self) -> None:
        for setting, known in (("partner", PARTNERS), ("inputs", INPUTS)):
            if getattr(self, setting) not in known:
                raise SettingError(f"{setting} '{getattr(self, setting)}' is unknown; choose {' or '.join(known)}")


# Words of experiments become methods and configurations here; needs torch and numpy alone


BOOSTED_TREES = "trees"
ABLATIONS: dict[str, Callable[[FedSim], FedSim]] = {
    "fedsim-without-weight": lambda fedsim: replace(fedsim, weight=SimilarityAsWeight()),
    "fedsim-without-sort": lambda fedsim: replace(fedsim, order=Shuffled()),
    "fedsim-without-cnn": lambda fedsim: replace(fedsim, merge=PerceptronMerge()),
}


def check_rung(rung: Rung) -> None:
    """Raise SettingError if the rung names an unknown method or preset."""
    if rung.method not in (BOOSTED_TREES, *ABLATIONS):
        METHODS[rung.method]
    PRESETS[rung.preset]


def rung_config(rung: Rung, seed: int, device: str = "auto") -> Config:
    """Return the training configuration of a rung: its preset, method and settings.

    >>> rung_config(Rung("x", "X", "fedsim-without-sort", preset="paper"), seed=0).batch
    128
    """
    check_rung(rung)
    method: str | Method = rung.method
    if rung.method in ABLATIONS:
        method = ABLATIONS[rung.method](PRESETS[rung.preset].build().method)
    overrides = ConfigOverrides(rung.epochs, rung.batch, rung.rate, rung.patience)
    config = build_config(rung.preset, method, overrides, seed=seed, device=device)
    if rung.hidden is not None:
        width = validate_integer(rung.hidden, "hidden", least=1)
        config = replace(config, local=replace(config.local, hidden=(width,)))
    if rung.decay is not None:
        if not 0 <= rung.decay < 1:
            raise SettingError(
                f"decay={rung.decay}; choose a weight decay from 0 to below 1, such as 1e-4",
                code="decay-out-of-range",
                value=rung.decay,
            )
        config = replace(config, optimiser=replace(config.optimiser, decay=rung.decay))  # type: ignore[type-var]
    return config


# Training rungs on prepared arrays


PLACEBO_SEED = 1234
N_COLUMN_PARTIES = 3
MessageCallback = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class RungOutcome:
    """What came of a training: predictions of the test rows, metrics, and figures about the run."""

    predictions: NDArray[Any]
    test: Metrics
    validation: Metrics
    figures: dict[str, Any]


RungTrainer = Callable[[Rung, SplitArrays], RungOutcome]


def primary_data(rung: Rung, arrays: SplitArrays) -> PrimaryData:
    """What the primary of a rung learns from."""
    own = arrays.primary
    if rung.inputs == "identifiers":
        own = concatenate_features(own, arrays.own)
    if rung.inputs == "secondary":
        linked = arrays.secondaries[0]
        own = linked.features.take(linked.partner[linked.list_of, 0].astype(np.int64))
    goal = TaskType.NUMBERS if arrays.about["task"] == "regression" else TaskType.CLASSES
    return PrimaryData(own, arrays.labels, goal)


def secondary_data(rung: Rung, arrays: SplitArrays) -> list[SecondaryData]:
    """The partners of a rung, real or not."""
    rng = np.random.default_rng([PLACEBO_SEED, arrays.about["seed"]])
    others = shuffled_order(rung, arrays)
    found = [_one_secondary(rung, linked, others, rng) for linked in arrays.secondaries]
    return split_columns(found[0], rung.pieces) if rung.pieces else found


def shuffled_order(rung: Rung, arrays: SplitArrays) -> NDArray[Any]:
    """Whose links every record gets: its own, or those of another where they are shuffled."""
    n = len(arrays.labels)
    if rung.partner != "shuffled":
        return np.arange(n)
    return np.random.default_rng([PLACEBO_SEED, arrays.about["seed"]]).permutation(n)


def rung_links(rung: Rung, linked: LinkedSecondary, others: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Partner rows and similarities as a rung takes them."""
    lists = linked.list_of[others]
    if rung.method == "exact":
        equal = linked.equal[lists, None].astype(np.int64)
        return equal, np.zeros(equal.shape)
    k = rung.k or linked.partner.shape[1]
    if k > linked.partner.shape[1]:
        raise SettingError(f"rung '{rung.key}' asks for k={k}, but {linked.partner.shape[1]} partners were linked")
    return linked.partner[lists, :k].astype(np.int64), linked.similarity[lists, :k].astype(np.float64)


def _one_secondary(
    rung: Rung, linked: LinkedSecondary, others: NDArray[Any], rng: np.random.Generator
) -> SecondaryData:
    features = linked.features
    if rung.partner == "placebo":
        features = features.take(rng.permutation(len(features)))
    return SecondaryData(features, *rung_links(rung, linked, others), linked.name)


def split_columns(whole: SecondaryData, wanted: str) -> list[SecondaryData]:
    """A secondary's columns cut into three parties with the same rows; the first of those wanted brings the list."""
    features = as_features(whole.features)
    columns = np.array_split(np.arange(features.numbers.shape[1]), N_COLUMN_PARTIES)
    tables = {str(place + 1): Features(features.numbers[:, some]) for place, some in enumerate(columns)}
    first, others = wanted[:1], list(wanted[1:])
    leader = SecondaryData(tables[first], whole.partner, whole.similarity, f"party {first}")
    return [leader, *(SecondaryData(tables[one], name=f"party {one}", aligned_with=leader.name) for one in others)]


def concatenate_features(left: Features, right: Features) -> Features:
    """The columns of both."""
    shifted = tuple(left.numbers.shape[1] + place for place in right.many_valued)
    return Features(
        np.hstack([left.numbers, right.numbers]),
        np.hstack([left.codes, right.codes]),
        left.cardinalities + right.cardinalities,
        spread=(*left.many_valued, *shifted),
    )


def run_training(rung: Rung, arrays: SplitArrays, hooks: Sequence[Hook] = ()) -> RungOutcome:
    """One training, watched by hooks."""
    if rung.method == BOOSTED_TREES:
        from fedsim.contribution.boosted_trees import train_trees  # noqa: PLC0415 - scikit-learn is not on every machine

        return train_trees(rung, primary_data(rung, arrays), arrays)
    config = rung_config(rung, arrays.about["seed"])
    parties = primary_data(rung, arrays), secondary_data(rung, arrays)
    return rung_outcome(train(*parties, arrays.split, config, hooks=hooks))


def needs_no_partner(rung: Rung) -> bool:
    """Whether a rung needs nothing of any partner."""
    return rung.method in ("solo", BOOSTED_TREES) and rung.inputs != "secondary"


def rung_outcome(result: TrainingResult) -> RungOutcome:
    """What is kept of a training."""
    figures = {
        "best_epoch": result.best.number,
        "epochs": len(result.history),
        "epoch_seconds": float(np.median([epoch.seconds for epoch in result.history])),
    }
    return RungOutcome(result.predictions["test"], result.metrics["test"], result.metrics["validation"], figures)


def train_missing(
    cases: Iterable[SplitArrays],
    rungs: Sequence[Rung],
    results: ResultStore,
    tell: MessageCallback = print,
    train_rung: RungTrainer = run_training,
) -> None:
    """Train every rung on every case, but for what is among the results."""
    for rung in rungs:
        check_rung(rung)
    for arrays in cases:
        for rung in rungs:
            key = result_key(rung, arrays)
            if results.has(key):
                continue
            began = time.perf_counter()
            done = train_rung(rung, arrays)
            line = {
                **arrays.about,
                **key,
                "test": done.test,
                "validation": done.validation,
                **done.figures,
                **environment_info(),
            }
            results.add({**line, "seconds": time.perf_counter() - began}, done.predictions)
            tell(
                f"{arrays.about['split']} split, seed {arrays.about['seed']}: {rung.name}: {format_metrics(done.test)}"
            )


def numbered_progress(tell: MessageCallback, total: int) -> MessageCallback:
    """Tells with a number in front; what was trained before is not told again."""
    done = count(1)
    return lambda words: tell(f"[{next(done)} of at most {total}] {words}")


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Metrics for people.

    >>> format_metrics({"rmse": 27.4049, "r2": 0.95})
    'rmse 27.4, r2 0.95'
    """
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def result_key(rung: Rung, arrays: SplitArrays) -> dict[str, Any]:
    """By what a training is known: its settings, the digest of the data it sees, and how that is protected."""
    seed, protection = arrays.about["seed"], arrays.about.get("protection")
    seen = (
        [arrays.own_digest, seed]
        if needs_no_partner(rung)
        else [arrays.digest, seed, *([protection] if protection else [])]
    )
    linked = {each.partner.shape[1] for each in arrays.secondaries}
    settings = asdict(replace(rung, k=None) if linked == {rung.k} else rung)
    return {"settings": settings, "data": " ".join(map(str, seen))}


def environment_info() -> dict[str, str]:
    """Where and by what a training ran."""
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    versions = {"fedsim": VERSION, "torch": torch.__version__, "numpy": np.__version__}
    return {"device": device, **versions}
