"""Train the rungs of an experiment on prepared arrays; needs torch and numpy alone.

``python -m fedsim.experiment.run RUNGS.json ARRAYS RESULTS`` trains every rung of the list on every ``.npz`` of the
folder; what is among the results already is not trained again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.errors import SettingError
from fedsim.experiment.arrays import Arrays, Linked
from fedsim.experiment.choices import TREES, check_rung, config_of
from fedsim.experiment.results import Results
from fedsim.experiment.rung import Rung
from fedsim.splitnn.features import Features
from fedsim.training import Goal, PrimaryData, Result, SecondaryData, train
from fedsim.training.data import as_features
from fedsim.training.hooks import Hook
from fedsim.training.metrics import Metrics
from fedsim.version import VERSION

PLACEBO_SEED = 1234
PIECES = 3
Tell = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Trained:
    """What came of a training: predictions of the test rows, metrics, and figures about the run."""

    predictions: NDArray[Any]
    test: Metrics
    validation: Metrics
    figures: dict[str, Any]


TrainRung = Callable[[Rung, Arrays], Trained]


def primary_of(rung: Rung, arrays: Arrays) -> PrimaryData:
    """What the primary of a rung learns from."""
    own = arrays.primary
    if rung.inputs == "identifiers":
        own = beside(own, arrays.own)
    if rung.inputs == "secondary":
        linked = arrays.secondaries[0]
        own = linked.features.take(linked.partner[linked.list_of, 0].astype(np.int64))
    goal = Goal.NUMBERS if arrays.about["task"] == "regression" else Goal.CLASSES
    return PrimaryData(own, arrays.labels, goal)


def secondaries_of(rung: Rung, arrays: Arrays) -> list[SecondaryData]:
    """The partners of a rung, real or not."""
    rng = np.random.default_rng([PLACEBO_SEED, arrays.about["seed"]])
    others = shuffled_order(rung, arrays)
    found = [_secondary(rung, linked, others, rng) for linked in arrays.secondaries]
    return in_pieces(found[0], rung.pieces) if rung.pieces else found


def shuffled_order(rung: Rung, arrays: Arrays) -> NDArray[Any]:
    """Whose links every record gets: its own, or those of another where they are shuffled."""
    n = len(arrays.labels)
    if rung.partner != "shuffled":
        return np.arange(n)
    return np.random.default_rng([PLACEBO_SEED, arrays.about["seed"]]).permutation(n)


def links_of(rung: Rung, linked: Linked, others: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Partner rows and similarities as a rung takes them."""
    lists = linked.list_of[others]
    if rung.method == "exact":
        equal = linked.equal[lists, None].astype(np.int64)
        return equal, np.zeros(equal.shape)
    k = rung.k or linked.partner.shape[1]
    if k > linked.partner.shape[1]:
        raise SettingError(f"rung '{rung.key}' asks for k={k}, but {linked.partner.shape[1]} partners were linked")
    return linked.partner[lists, :k].astype(np.int64), linked.similarity[lists, :k].astype(np.float64)


def _secondary(rung: Rung, linked: Linked, others: NDArray[Any], rng: np.random.Generator) -> SecondaryData:
    features = linked.features
    if rung.partner == "placebo":
        features = features.take(rng.permutation(len(features)))
    return SecondaryData(features, *links_of(rung, linked, others), linked.name)


def in_pieces(whole: SecondaryData, wanted: str) -> list[SecondaryData]:
    """A secondary's columns cut into three parties with the same rows; the first of those wanted brings the list."""
    features = as_features(whole.features)
    columns = np.array_split(np.arange(features.numbers.shape[1]), PIECES)
    tables = {str(place + 1): Features(features.numbers[:, some]) for place, some in enumerate(columns)}
    first, others = wanted[:1], list(wanted[1:])
    leader = SecondaryData(tables[first], whole.partner, whole.similarity, f"party {first}")
    return [leader, *(SecondaryData(tables[one], name=f"party {one}", aligned_with=leader.name) for one in others)]


def beside(left: Features, right: Features) -> Features:
    """The columns of both."""
    shifted = tuple(left.numbers.shape[1] + place for place in right.many_valued)
    return Features(
        np.hstack([left.numbers, right.numbers]),
        np.hstack([left.codes, right.codes]),
        left.cardinalities + right.cardinalities,
        spread=(*left.many_valued, *shifted),
    )


def trained(rung: Rung, arrays: Arrays, hooks: Sequence[Hook] = ()) -> Trained:
    """One training, watched by hooks."""
    if rung.method == TREES:
        from fedsim.experiment.trees import grown  # noqa: PLC0415 - scikit-learn is not on every machine

        return grown(rung, primary_of(rung, arrays), arrays)
    config = config_of(rung, arrays.about["seed"])
    parties = primary_of(rung, arrays), secondaries_of(rung, arrays)
    return outcome_of(train(*parties, arrays.split, config, hooks=hooks))


def alone(rung: Rung) -> bool:
    """Whether a rung needs nothing of any partner."""
    return rung.method in ("solo", TREES) and rung.inputs != "secondary"


def outcome_of(result: Result) -> Trained:
    """What is kept of a training."""
    figures = {
        "best_epoch": result.best.number,
        "epochs": len(result.history),
        "epoch_seconds": float(np.median([epoch.seconds for epoch in result.history])),
    }
    return Trained(result.predictions["test"], result.metrics["test"], result.metrics["validation"], figures)


def climb(
    cases: Iterable[Arrays],
    rungs: Sequence[Rung],
    results: Results,
    tell: Tell = print,
    train_rung: TrainRung = trained,
) -> None:
    """Train every rung on every case, but for what is among the results."""
    for rung in rungs:
        check_rung(rung)
    for arrays in cases:
        for rung in rungs:
            key = key_of(rung, arrays)
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
                **machine(),
            }
            results.add({**line, "seconds": time.perf_counter() - began}, done.predictions)
            tell(f"{arrays.about['split']} split, seed {arrays.about['seed']}: {rung.name}: {metric_words(done.test)}")


def numbered(tell: Tell, total: int) -> Tell:
    """Tells with a number in front; what was trained before is not told again."""
    done = count(1)
    return lambda words: tell(f"[{next(done)} of at most {total}] {words}")


def metric_words(metrics: Mapping[str, float]) -> str:
    """Metrics for people.

    >>> metric_words({"rmse": 27.4049, "r2": 0.95})
    'rmse 27.4, r2 0.95'
    """
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def key_of(rung: Rung, arrays: Arrays) -> dict[str, Any]:
    """By what a training is known: its settings, the digest of the data it sees, and how that is protected."""
    seed, protection = arrays.about["seed"], arrays.about.get("protection")
    seen = [arrays.own_digest, seed] if alone(rung) else [arrays.digest, seed, *([protection] if protection else [])]
    linked = {each.partner.shape[1] for each in arrays.secondaries}
    settings = asdict(replace(rung, k=None) if linked == {rung.k} else rung)
    return {"settings": settings, "data": " ".join(map(str, seen))}


def machine() -> dict[str, str]:
    """Where and by what a training ran."""
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    versions = {"fedsim": VERSION, "torch": torch.__version__, "numpy": np.__version__}
    return {"device": device, **versions}


def read_rungs(path: Path) -> list[Rung]:
    """Rungs from a JSON list."""
    return [Rung(**words) for words in json.loads(path.read_text())]


def cases_in(folder: Path) -> Iterable[Arrays]:
    """The arrays of a folder, one after the other."""
    return (Arrays.load(path) for path in sorted(folder.glob("*.npz")))


if __name__ == "__main__":
    climb(cases_in(Path(sys.argv[2])), read_rungs(Path(sys.argv[1])), Results(Path(sys.argv[3])))
