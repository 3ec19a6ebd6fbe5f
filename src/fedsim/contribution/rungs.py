"""The rungs of the ladder: model variants, their configuration and inputs, and training them; needs torch and numpy."""

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
from fedsim.registry import FEDSIM_VARIANTS, METHODS, PRESETS
from fedsim.splitnn.layers import Features
from fedsim.splitnn.methods import Method
from fedsim.training import Config, PrimaryData, SecondaryData, TaskType, TrainingResult, train
from fedsim.training.config import ConfigOverrides, build_config
from fedsim.training.data import as_features
from fedsim.training.labels import Metrics, classification_metrics, regression_metrics
from fedsim.training.loop import Hook
from fedsim.validation import validate_integer
from fedsim.version import VERSION

PARTNERS = ("real", "placebo", "shuffled")
INPUTS = ("features", "identifiers", "secondary")
BOOSTED_TREES = "trees"


@dataclass(frozen=True)
class Rung:
    """One training to compare: a method on certain inputs with certain settings.

    Parameters
    ----------
    key, name
        For programs and for people.
    method, preset
        A registered method (or ``"trees"``, or a registered variant of FedSim) and a registered preset.
    partner
        ``"real"``; ``"placebo"`` shuffles the partner's feature rows and keeps the links; ``"shuffled"`` gives every
        record the links of another.
    inputs
        The primary's ``"features"``; these and its own ``"identifiers"``; or, for a method without partners, only the
        features of the most similar record of the ``"secondary"``.
    pieces
        Such as ``"13"``: the secondary's columns are split between three parties, and the first and the third take
        part (paper, appendix "Multi-Party FedSim").
    k, epochs, batch, rate, patience
        As in :class:`fedsim.training.Config`; None keeps the preset's value.
    hidden, decay
        Width of the hidden layer of every local network, and weight decay.
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
            value = getattr(self, setting)
            if value not in known:
                message = f"{setting} '{value}' is unknown; choose {' or '.join(known)}"
                raise SettingError(message, code=f"unknown-{setting}")


def check_rung(rung: Rung) -> None:
    """Raise SettingError if the rung names an unknown method or preset."""
    if rung.method not in (BOOSTED_TREES, *FEDSIM_VARIANTS):
        METHODS[rung.method]
    PRESETS[rung.preset]


def rung_config(rung: Rung, seed: int, device: str = "auto") -> Config:
    """Return the training configuration of a rung: its preset, method and settings.

    >>> rung_config(Rung("x", "X", "avgsim", preset="paper"), seed=0).batch
    128
    """
    check_rung(rung)
    method: str | Method = rung.method
    if rung.method in FEDSIM_VARIANTS:
        method = FEDSIM_VARIANTS[rung.method](PRESETS[rung.preset].build().method)
    overrides = ConfigOverrides(rung.epochs, rung.batch, rung.rate, rung.patience)
    config = build_config(rung.preset, method, overrides, seed=seed, device=device)
    if rung.hidden is not None:
        width = validate_integer(rung.hidden, "hidden", least=1)
        config = replace(config, local=replace(config.local, hidden=(width,)))
    if rung.decay is not None:
        if not 0 <= rung.decay < 1:
            message = f"decay={rung.decay}; choose a weight decay from 0 to below 1, such as 1e-4"
            raise SettingError(message, code="decay-out-of-range", value=rung.decay)
        config = replace(config, optimiser=replace(config.optimiser, decay=rung.decay))  # type: ignore[type-var]
    return config


# Inputs of a rung


PLACEBO_SEED = 1234
N_COLUMN_PARTIES = 3


def needs_no_partner(rung: Rung) -> bool:
    """Return whether a rung uses nothing of any partner."""
    return rung.method in ("solo", BOOSTED_TREES) and rung.inputs != "secondary"


def primary_data(rung: Rung, arrays: SplitArrays) -> PrimaryData:
    """Return what the primary of a rung learns from."""
    features = arrays.primary
    if rung.inputs == "identifiers":
        features = concatenate_features(features, arrays.own)
    if rung.inputs == "secondary":
        linked = arrays.secondaries[0]
        features = linked.features.take(linked.partner[linked.list_of, 0].astype(np.int64))
    task_type = TaskType.NUMBERS if arrays.about["task"] == "regression" else TaskType.CLASSES
    return PrimaryData(features, arrays.labels, task_type)


def secondary_data(rung: Rung, arrays: SplitArrays) -> list[SecondaryData]:
    """Return the partners of a rung, real or not."""
    rng = np.random.default_rng([PLACEBO_SEED, arrays.about["seed"]])
    order, secondaries = link_order(rung, arrays), []
    for linked in arrays.secondaries:
        features = linked.features
        if rung.partner == "placebo":
            features = features.take(rng.permutation(len(features)))
        secondaries.append(SecondaryData(features, *rung_links(rung, linked, order), linked.name))
    return split_columns(secondaries[0], rung.pieces) if rung.pieces else secondaries


def link_order(rung: Rung, arrays: SplitArrays) -> NDArray[Any]:
    """Return whose links every record gets: its own, or those of another if they are shuffled."""
    n = len(arrays.labels)
    if rung.partner != "shuffled":
        return np.arange(n)
    return np.random.default_rng([PLACEBO_SEED, arrays.about["seed"]]).permutation(n)


def rung_links(rung: Rung, linked: LinkedSecondary, order: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return partner rows and similarities of a rung, (n, K) each."""
    lists = linked.list_of[order]
    if rung.method == "exact":
        equal = linked.equal[lists, None].astype(np.int64)
        return equal, np.zeros(equal.shape)
    limit = linked.partner.shape[1]
    k = rung.k or limit
    if k > limit:
        message = f"k={k} in rung '{rung.key}', but only {limit} partners were linked; choose k up to {limit}"
        raise SettingError(message, code="k-too-large", limit=limit)
    return linked.partner[lists, :k].astype(np.int64), linked.similarity[lists, :k].astype(np.float64)


def split_columns(secondary: SecondaryData, wanted: str) -> list[SecondaryData]:
    """Split a secondary's columns between three parties with the same rows; the first of those wanted has the list."""
    features = as_features(secondary.features)
    columns = np.array_split(np.arange(features.numbers.shape[1]), N_COLUMN_PARTIES)
    tables = {str(place + 1): Features(features.numbers[:, part]) for place, part in enumerate(columns)}
    first, others = wanted[:1], list(wanted[1:])
    leader = SecondaryData(tables[first], secondary.partner, secondary.similarity, f"party {first}")
    return [leader, *(SecondaryData(tables[one], name=f"party {one}", aligned_with=leader.name) for one in others)]


def concatenate_features(left: Features, right: Features) -> Features:
    """Return the columns of both."""
    shifted = tuple(left.numbers.shape[1] + place for place in right.many_valued)
    return Features(
        np.hstack([left.numbers, right.numbers]),
        np.hstack([left.codes, right.codes]),
        left.cardinalities + right.cardinalities,
        spread=(*left.many_valued, *shifted),
    )


# Training


MessageCallback = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class RungOutcome:
    """The result of a training: predictions of the test rows, metrics, and figures about the run."""

    predictions: NDArray[Any]
    test: Metrics
    validation: Metrics
    figures: dict[str, Any]


RungTrainer = Callable[[Rung, SplitArrays], RungOutcome]


def run_training(rung: Rung, arrays: SplitArrays, hooks: Sequence[Hook] = ()) -> RungOutcome:
    """Train one rung in this process."""
    if rung.method == BOOSTED_TREES:
        return train_trees(rung, primary_data(rung, arrays), arrays)
    config = rung_config(rung, arrays.about["seed"])
    parties = primary_data(rung, arrays), secondary_data(rung, arrays)
    return rung_outcome(train(*parties, arrays.split, config, hooks=hooks))


def rung_outcome(result: TrainingResult) -> RungOutcome:
    """Return what is stored of a training."""
    figures = {
        "best_epoch": result.best.number,
        "epochs": len(result.history),
        "epoch_seconds": float(np.median([epoch.seconds for epoch in result.history])),
    }
    return RungOutcome(result.predictions["test"], result.metrics["test"], result.metrics["validation"], figures)


MAX_CATEGORIES = 250  # scikit-learn takes at most 255; columns with more are taken as numbers
ROUNDS, RATE, LEAVES, PATIENCE = 3000, 0.1, 63, 40


def train_trees(rung: Rung, primary: PrimaryData, arrays: SplitArrays) -> RungOutcome:
    """Fit gradient boosted trees to the training rows; the validation rows decide how many are used."""
    # scikit-learn is not on every machine that trains networks.
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor  # noqa: PLC0415

    features = as_features(primary.features)
    columns = np.hstack([features.numbers, features.codes]).astype(np.float64)
    few = [cardinality <= MAX_CATEGORIES for cardinality in features.cardinalities]
    split, classify = arrays.split, primary.task_type is TaskType.CLASSES
    labels = np.unique(primary.labels, return_inverse=True)[1] if classify else primary.labels
    kind: Any = HistGradientBoostingClassifier if classify else HistGradientBoostingRegressor
    model = kind(
        max_iter=rung.epochs or ROUNDS,
        learning_rate=rung.rate or RATE,
        max_leaf_nodes=LEAVES,
        categorical_features=np.array([False] * features.numbers.shape[1] + few, dtype=bool),
        early_stopping=True,
        n_iter_no_change=rung.patience or PATIENCE,
        random_state=arrays.about["seed"],
    )
    # scikit-learn cannot score classes that training lacks, so such validation rows do not decide.
    known = split.validation[np.isin(labels[split.validation], labels[split.train])] if classify else split.validation
    deciding = known if len(known) else split.train
    model.fit(columns[split.train], labels[split.train], X_val=columns[deciding], y_val=labels[deciding])
    best = max(1, int(np.argmax(model.validation_score_)))  # the first score is that of no tree at all
    staged = model.staged_predict_proba if classify else model.staged_predict

    def predict(rows: NDArray[Any]) -> NDArray[Any]:
        predictions = next(np.array(stage) for tree, stage in enumerate(staged(columns[rows]), start=1) if tree == best)
        if not classify:
            return predictions
        every = np.zeros((len(rows), labels.max() + 1))  # a class that no training record has gets probability 0
        every[:, model.classes_] = predictions[:, : len(model.classes_)]  # one class alone has two columns
        return every

    measure = classification_metrics if classify else regression_metrics
    test, validation = predict(split.test), predict(split.validation)
    return RungOutcome(
        test, measure(test, labels[split.test]), measure(validation, labels[split.validation]), {"best_epoch": best}
    )


def train_missing(
    cases: Iterable[SplitArrays],
    rungs: Sequence[Rung],
    results: ResultStore,
    report: MessageCallback = print,
    train_rung: RungTrainer = run_training,
) -> None:
    """Train every rung on every case, except those that are already among the results."""
    for rung in rungs:
        check_rung(rung)
    for arrays in cases:
        for rung in rungs:
            key, about = result_key(rung, arrays), arrays.about
            if results.has(key):
                continue
            began = time.perf_counter()
            outcome = train_rung(rung, arrays)
            line = {**about, **key, "test": outcome.test, "validation": outcome.validation, **outcome.figures}
            line |= {**environment_info(), "seconds": time.perf_counter() - began}
            results.add(line, outcome.predictions)
            report(f"{about['split']} split, seed {about['seed']}: {rung.name}: {format_metrics(outcome.test)}")


def numbered_progress(report: MessageCallback, total: int) -> MessageCallback:
    """Return a callback that numbers its messages."""
    done = count(1)
    return lambda message: report(f"[{next(done)} of at most {total}] {message}")


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Format metrics for people.

    >>> format_metrics({"rmse": 27.4049, "r2": 0.95})
    'rmse 27.4, r2 0.95'
    """
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def result_key(rung: Rung, arrays: SplitArrays) -> dict[str, Any]:
    """Return what identifies a training: its settings, the digest of the data it sees, and their protection."""
    seed, protection = arrays.about["seed"], arrays.about.get("protection")
    if needs_no_partner(rung):
        data = [arrays.own_digest, seed]
    else:
        data = [arrays.digest, seed, *([protection] if protection else [])]
    linked = {each.partner.shape[1] for each in arrays.secondaries}
    settings = asdict(replace(rung, k=None) if linked == {rung.k} else rung)
    return {"settings": settings, "data": " ".join(map(str, data))}


def environment_info() -> dict[str, str]:
    """Return device and versions of this process."""
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    return {"device": device, "fedsim": VERSION, "torch": torch.__version__, "numpy": np.__version__}
