"""Hyperparameter sweeps: a full grid, or a search with Optuna; settings are ranked by the validation records.

Settings are judged by the validation records alone; the test records are looked at for the best one. Every training is
kept, so a sweep that was stopped goes on, and a search after a grid repeats nothing.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.contribution.rungs import ResultStore, Rung, SplitArrays, format_metrics, train_missing
from fedsim.errors import FileError, SettingError
from fedsim.storage.files import ensure_folder
from fedsim.training.data import selection_key
from fedsim_lab.dataset_cases import DatasetCases, LinkageOverrides
from fedsim_lab.experiment_config import SPLITS, check_choice
from fedsim_lab.study_runner import StudyContext, load_sample

TRAINING_SETTINGS = ("rate", "batch", "hidden", "decay")


@dataclass(frozen=True)
class SweepSetting:
    """One point of a sweep; ``None`` and an empty metric leave what dataset and preset say."""

    k: int | None = None
    metric: str = ""
    tau: float | None = None
    rate: float | None = None
    batch: int | None = None
    hidden: int | None = None
    decay: float | None = None

    def words(self) -> str:
        """What differs from the preset.

        >>> SweepSetting(k=20, rate=0.001).words()
        'k 20, rate 0.001'
        """
        given = {name: value for name, value in asdict(self).items() if value not in (None, "")}
        return ", ".join(f"{name} {value}" for name, value in given.items()) or "as the preset has it"


@dataclass(frozen=True)
class SweepGrid:
    """The values of every setting that are tried."""

    k: Sequence[int | None] = (None,)
    metric: Sequence[str] = ("",)
    tau: Sequence[float | None] = (None,)
    rate: Sequence[float | None] = (None,)
    batch: Sequence[int | None] = (None,)
    hidden: Sequence[int | None] = (None,)
    decay: Sequence[float | None] = (None,)

    def settings(self) -> list[SweepSetting]:
        """Every combination."""
        axes = vars(self)
        return [SweepSetting(**dict(zip(axes, values, strict=True))) for values in product(*axes.values())]


GRIDS = {
    # Appendix "Experimental Details", "Hyperparameters"; hidden is the layer of the local networks.
    "paper": SweepGrid(
        k=(50, 100), rate=(3e-4, 1e-3, 3e-3, 1e-2), batch=(32, 128), hidden=(100, 200, 400), decay=(1e-5, 1e-4)
    ),
    "partners": SweepGrid(k=(5, 10, 20, 50)),
    "privacy": SweepGrid(metric=("hamming",), tau=(None, 1e-2, 1e-3, 1e-4)),
    "rate": SweepGrid(rate=(3e-4, 1e-3, 3e-3, 1e-2)),
}


@dataclass(frozen=True)
class SweepSubject:
    """What is swept: a dataset and a method under a preset, on one split."""

    dataset: str
    method: str = "fedsim"
    preset: str = "modern"
    split: str = "random"
    epochs: int | None = None
    records: int = 0
    secondaries: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        check_choice(self.split, SPLITS, "split")

    def rung(self, setting: SweepSetting) -> Rung:
        """What is trained at a setting."""
        own = Rung(self.method, self.method, self.method, preset=self.preset, epochs=self.epochs)
        return replace(own, **{name: getattr(setting, name) for name in TRAINING_SETTINGS})


@dataclass(frozen=True)
class SweepTrial:
    """A setting with its validation metrics over the seeds."""

    setting: SweepSetting
    validation: dict[str, float]
    test: dict[str, float] = field(repr=False)

    @property
    def score(self) -> tuple[float, ...]:
        """The greater, the better."""
        return selection_key(self.validation)


class Sweep:
    """Trains settings of a subject and remembers what came of them."""

    def __init__(self, subject: SweepSubject, bench: StudyContext) -> None:
        self.subject, self.bench = subject, bench
        self.results = ResultStore(bench.out)
        self._cases = lru_cache(maxsize=4)(self._linked)

    def grid(self, grid: SweepGrid) -> list[SweepTrial]:
        """Train every combination; return the best first."""
        self._check_partners(grid)
        settings = grid.settings()
        found = [
            self._run_and_report(setting, f"[{done} of {len(settings)}]")
            for done, setting in enumerate(settings, start=1)
        ]
        return _rank_trials(found)

    def run_setting(self, setting: SweepSetting, place: str = "") -> SweepTrial:
        """Train one setting for every seed, except where results exist; hooks get the name of its place."""
        rung, lines = self.subject.rung(setting), []
        train_rung = self.bench.trainer(place)
        for arrays in self._each(setting):
            # Reports nothing, because a report shows the test score.
            train_missing([arrays], [rung], self.results, lambda _: None, train_rung)
            lines.append(self.results.line(rung.result_key(arrays)))
        validation, test = (
            {name: float(np.mean([line[part][name] for line in lines])) for name in lines[0][part]}
            for part in ("validation", "test")
        )
        return SweepTrial(setting, validation, test)

    def _run_and_report(self, setting: SweepSetting, number: str) -> SweepTrial:
        place = f"{number} {self.subject.dataset}, {setting.words()}"
        found = self.run_setting(setting, place)
        self.bench.report(f"{place}: validation {format_metrics(found.validation)}")
        return found

    def search(self, grid: SweepGrid, trials: int, memory: Path) -> list[SweepTrial]:
        """Let Optuna choose settings within the grid's bounds until so many were tried; the best first.

        The learning rate may lie between the grid's ends; everything else is one of its values. ``memory`` keeps what
        Optuna knows, so that a second call goes on.
        """
        self._check_partners(grid)
        study = _optuna_study(memory, f"{self.subject.dataset} {_search_digest(self.subject, self.bench.seeds, grid)}")
        known = len(study.get_trials(deepcopy=False))
        study.sampler = _import_optuna().samplers.TPESampler(seed=known)  # a second call must not ask the same again
        while (done := len(study.get_trials(deepcopy=False, states=_completed_states()))) < trials:
            trial = study.ask()
            found = self._run_and_report(_suggest_setting(trial, grid), f"[{done + 1} of {trials}]")
            trial.set_user_attr("setting", asdict(found.setting))
            study.tell(trial, found.score[0])
        ended = study.get_trials(deepcopy=False, states=_completed_states())
        settings = {SweepSetting(**trial.user_attrs["setting"]) for trial in ended}
        return _rank_trials([self.run_setting(setting) for setting in settings])

    def _check_partners(self, grid: SweepGrid) -> None:
        """Raise SettingError for an invalid number of partners before any training starts."""
        most = min(len(secondary.table) for secondary in self._cases(None, "", None).taking_part)
        for k in grid.k:
            if k is not None and not 1 <= k <= most:
                raise SettingError(
                    f"k={k}, but the secondary of {self.subject.dataset} has {most:,} records; "
                    f"choose k between 1 and {most:,}",
                    code="out-of-range",
                    name="k",
                    limit=most,
                )

    def _each(self, setting: SweepSetting) -> Iterator[SplitArrays]:
        cases = self._cases(setting.k, setting.metric, setting.tau)
        return cases.each([self.subject.split], range(self.bench.seeds))

    def _linked(self, k: int | None, metric: str, tau: float | None) -> DatasetCases:
        dataset = load_sample(self.subject.dataset, self.bench.data, self.subject.records)
        return DatasetCases(dataset, LinkageOverrides(k, metric, tau), self.subject.secondaries)


def _rank_trials(found: list[SweepTrial]) -> list[SweepTrial]:
    """The best first."""
    return sorted(found, key=lambda each: each.score, reverse=True)


def _search_digest(subject: SweepSubject, seeds: int, grid: SweepGrid) -> str:
    """Stands for all that a search depends on: Optuna's memory of another one must not be mixed with it."""
    words = json.dumps([asdict(subject), seeds, asdict(grid)], sort_keys=True)
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def _suggest_setting(trial: Any, grid: SweepGrid) -> SweepSetting:
    """Optuna's proposal."""
    given = {
        name: trial.suggest_categorical(name, list(values)) for name, values in vars(grid).items() if name != "rate"
    }
    rates = [rate for rate in grid.rate if rate is not None]
    if len(rates) > 1:
        return SweepSetting(**given, rate=float(f"{trial.suggest_float('rate', min(rates), max(rates), log=True):.3g}"))
    return SweepSetting(**given, rate=rates[0] if rates else None)


def _optuna_study(memory: Path, name: str) -> Any:
    optuna = _import_optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    ensure_folder(memory.parent)
    try:
        backend = optuna.storages.journal.JournalFileBackend(str(memory))
        storage = optuna.storages.JournalStorage(backend)
        return optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
    except OSError as error:
        raise FileError(f"cannot use {memory}: {error.strerror}; check folder and space") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FileError(f"{memory} holds a line that is not Optuna's; remove the file, no training is lost") from None


def _completed_states() -> Any:
    return (_import_optuna().trial.TrialState.COMPLETE,)


def _import_optuna() -> Any:
    try:
        import optuna  # noqa: PLC0415 - an optional extra
        import optuna.storages.journal  # noqa: PLC0415
    except ImportError:
        message = "a search requires Optuna, which is not installed; pip install 'fedsim-vfl[search]'"
        raise SettingError(message, code="missing-package") from None
    return optuna
