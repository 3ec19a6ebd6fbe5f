"""Search for the best training settings: one after the other, a full grid, or with Optuna.

Settings are judged by the validation records alone; the test records are looked at for the best one. Every training is
stored, so a search that was stopped continues, and another search in the same folder repeats nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedsim.config.job import Job
from fedsim.config.party_file import PartyFile
from fedsim.contribution.job_ladder import JobCases, training_settings_of
from fedsim.contribution.rungs import (
    MessageCallback,
    ResultStore,
    Rung,
    RungTrainer,
    SplitArrays,
    format_metrics,
    run_training,
    train_missing,
)
from fedsim.errors import FileError, SettingError
from fedsim.storage.files import ensure_folder
from fedsim.training.data import selection_key

TRAINING_SETTINGS = ("rate", "batch", "hidden", "members", "decay")
JOB_SETTINGS = {
    "rate": "learning_rate",
    "batch": "batch_size",
    "hidden": "width",
    "members": "members",
}  # of the section [training]


@dataclass(frozen=True)
class TuningSetting:
    """One point of a search; ``None`` and an empty metric keep what job, dataset or preset say.

    ``k`` is that of every secondary, ``k_factor`` multiplies the K of each.
    """

    k: int | None = None
    k_factor: float | None = None
    metric: str = ""
    tau: float | None = None
    rate: float | None = None
    batch: int | None = None
    hidden: int | None = None
    members: int | None = None
    decay: float | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The values that are set."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}

    @property
    def named(self) -> dict[str, Any]:
        """The values that are set, by the names that the command line gives them."""
        return {"width" if name == "hidden" else name: value for name, value in self.given.items()}

    def describe(self) -> str:
        """Return what is set.

        >>> TuningSetting(k=20, rate=0.001, hidden=256).describe()
        'k 20, rate 0.001, width 256'
        """
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.named.items()) or "no change"

    def partners(self, own: Mapping[str, int]) -> dict[str, int]:
        """Return the K of every secondary, given those of the job.

        >>> TuningSetting(k_factor=0.5).partners({"rentals": 20, "schools": 5})
        {'rentals': 10, 'schools': 2}
        """
        factor = 1.0 if self.k_factor is None else self.k_factor
        return {name: self.k or max(1, int(factor * k)) for name, k in own.items()}

    def job_settings(self, own: Mapping[str, int]) -> dict[tuple[str, ...], Any]:
        """Return what is set by the place of the setting in a job file, given the K of the job's secondaries.

        >>> TuningSetting(k=5, rate=0.01).job_settings({"rentals": 20})
        {('training', 'learning_rate'): 0.01, ('secondaries', 'rentals', 'k'): 5}
        """
        given, partners = self.given, self.partners(own)
        found: dict[tuple[str, ...], Any] = {
            ("training", name): given[own_name] for own_name, name in JOB_SETTINGS.items() if own_name in given
        }
        if self.k is not None or self.k_factor is not None:
            found |= {("secondaries", name, "k"): k for name, k in partners.items()}
        return found


@dataclass(frozen=True)
class TuningGrid:
    """The values of every setting that are tried."""

    k: Sequence[int | None] = (None,)
    k_factor: Sequence[float | None] = (None,)
    metric: Sequence[str] = ("",)
    tau: Sequence[float | None] = (None,)
    rate: Sequence[float | None] = (None,)
    batch: Sequence[int | None] = (None,)
    hidden: Sequence[int | None] = (None,)
    members: Sequence[int | None] = (None,)
    decay: Sequence[float | None] = (None,)

    def settings(self) -> list[TuningSetting]:
        """Return every combination."""
        axes = vars(self)
        return [TuningSetting(**dict(zip(axes, values, strict=True))) for values in product(*axes.values())]


class TuningSubject(Protocol):
    """What is tuned: its name, arrays and training at a setting, and JSON values that identify it."""

    @property
    def name(self) -> str: ...

    @property
    def most_partners(self) -> int:
        """Return the largest K."""

    def cases(self, setting: TuningSetting) -> Iterable[SplitArrays]: ...

    def rung(self, setting: TuningSetting) -> Rung: ...

    def identity(self) -> Any: ...


@dataclass(frozen=True)
class TuningTrial:
    """A setting with its metrics, means over the seeds.

    ``label`` names what they measure, such as log(price); ``records`` is the smallest number of validation records.
    """

    setting: TuningSetting
    validation: dict[str, float]
    test: dict[str, float] = field(repr=False)
    label: str = ""
    records: int = 0

    @property
    def score(self) -> tuple[float, ...]:
        """The greater, the better."""
        return selection_key(self.validation)


@dataclass(frozen=True, eq=False)
class Tuner:
    """Trains a subject at many settings and returns trials, the best first; ``trainer`` gets the name of a trial."""

    subject: TuningSubject
    results: ResultStore
    report: MessageCallback = print
    trainer: Callable[[str], RungTrainer] = lambda _: run_training

    def climb(self, grid: TuningGrid) -> list[TuningTrial]:
        """Tune one setting after the other, each with the best values so far of those before it."""
        self.check_partners(grid)
        axes = {axis.name: getattr(grid, axis.name) for axis in fields(grid)}
        best, total = TuningSetting(), 1 + sum(len(values) for values in axes.values() if values != (None,))
        found = {best: self._run_and_report(best, f"[1 of at most {total}]")}
        for name, values in axes.items():
            for setting in (replace(best, **{name: value}) for value in values):
                if setting not in found:
                    found[setting] = self._run_and_report(setting, f"[{len(found) + 1} of at most {total}]")
            best = max(found.values(), key=lambda trial: trial.score).setting
        return _rank_trials(found.values())

    def grid(self, grid: TuningGrid) -> list[TuningTrial]:
        """Train every combination."""
        self.check_partners(grid)
        settings = grid.settings()
        return _rank_trials(
            self._run_and_report(setting, f"[{number} of {len(settings)}]")
            for number, setting in enumerate(settings, start=1)
        )

    def search(self, grid: TuningGrid, trials: int, memory: Path) -> list[TuningTrial]:
        """Let Optuna choose settings within the grid's bounds for ``trials`` trials.

        The learning rate may lie between the grid's ends; everything else is one of its values. ``memory`` stores what
        Optuna knows, so that a second call continues.
        """
        self.check_partners(grid)
        words = json.dumps([self.subject.identity(), asdict(grid)], sort_keys=True)
        digest = hashlib.sha256(words.encode()).hexdigest()[:16]  # another search must not be mixed with this one
        study = _optuna_study(memory, f"{self.subject.name} {digest}")
        known = len(study.get_trials(deepcopy=False))
        study.sampler = _import_optuna().samplers.TPESampler(seed=known)  # a second call must not ask the same again
        while (done := len(study.get_trials(deepcopy=False, states=_completed_states()))) < trials:
            trial = study.ask()
            found = self._run_and_report(_suggest_setting(trial, grid), f"[{done + 1} of {trials}]")
            trial.set_user_attr("setting", asdict(found.setting))
            study.tell(trial, found.score[0])
        ended = study.get_trials(deepcopy=False, states=_completed_states())
        settings = {TuningSetting(**trial.user_attrs["setting"]) for trial in ended}
        return _rank_trials(self.run_setting(setting) for setting in settings)

    def run_setting(self, setting: TuningSetting, place: str = "") -> TuningTrial:
        """Train one setting on every case, except where results exist."""
        rung, lines, records = self.subject.rung(setting), [], []
        train_rung = self.trainer(place)
        for arrays in self.subject.cases(setting):
            # Reports nothing, because a report shows the test score.
            train_missing([arrays], [rung], self.results, lambda _: None, train_rung)
            lines.append(self.results.line(rung.result_key(arrays)))
            records.append(len(arrays.split.validation))
        validation, test = (
            {name: float(np.mean([line[part][name] for line in lines])) for name in lines[0][part]}
            for part in ("validation", "test")
        )
        return TuningTrial(setting, validation, test, lines[0].get("label", ""), min(records))

    def _run_and_report(self, setting: TuningSetting, number: str) -> TuningTrial:
        place = f"{number} {self.subject.name}, {setting.describe()}"
        found = self.run_setting(setting, place)
        of_label = f" of {found.label}" if found.label else ""
        self.report(f"{place}: validation {format_metrics(found.validation)}{of_label}")
        return found

    def check_partners(self, grid: TuningGrid) -> None:
        """Raise SettingError for an invalid number of partners before any training starts."""
        most = self.subject.most_partners
        for k in grid.k:
            if k is not None and not 1 <= k <= most:
                message = f"k={k}, but the secondary of {self.subject.name} has {most:,} records; "
                message += f"choose k between 1 and {most:,}"
                raise SettingError(message, code="out-of-range", name="k", limit=most)


def _rank_trials(found: Iterable[TuningTrial]) -> list[TuningTrial]:
    return sorted(found, key=lambda trial: trial.score, reverse=True)


# A job with all tables in this process


class JobSubject:
    """A job with its own features, split, method and protection.

    Parameters
    ----------
    job, files
        The job, and the files of the primary and all secondaries.
    folder
        Where filters and the secret of the noise are stored, so that a second call links alike.
    seeds
        Number of random splits.
    epochs
        Largest number of epochs; by default the job's.
    """

    def __init__(self, job: Job, files: Sequence[PartyFile], folder: Path, seeds: int, epochs: int | None) -> None:
        self.job, self.files, self.folder, self.seeds, self.epochs = job, files, folder, seeds, epochs
        self._cases = lru_cache(maxsize=2)(self._read)

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def most_partners(self) -> int:
        return min(self.records.values())

    @property
    def records(self) -> dict[str, int]:
        """The number of records of every secondary."""
        return {name: len(table) for name, table in self._linked(TuningSetting()).secondaries.items()}

    def partners(self) -> dict[str, int]:
        """Return the K of every secondary in the job."""
        return {name: terms.k for name, terms in self.job.secondaries.items()}

    def cases(self, setting: TuningSetting) -> Iterable[SplitArrays]:
        return self._linked(setting).cases(self.seeds, [self.job.task.split])

    def rung(self, setting: TuningSetting) -> Rung:
        method, training = self.job.training.method, training_settings_of(self.job)
        if self.epochs is not None:
            training = replace(training, epochs=self.epochs)
        (own,) = training.rungs([Rung(method, method, method)])
        given = {name: value for name, value in setting.given.items() if name in TRAINING_SETTINGS}
        return replace(own, **given)

    def identity(self) -> Any:
        return [self.job.to_dict(), self.seeds, self.epochs]

    def _linked(self, setting: TuningSetting) -> JobCases:
        return self._cases(tuple(setting.partners(self.partners()).values()))

    def _read(self, partners: tuple[int, ...]) -> JobCases:
        terms = zip(self.job.secondaries.items(), partners, strict=True)
        changed = {name: own.model_copy(update={"k": k}) for (name, own), k in terms}
        job = self.job.model_copy(update={"secondaries": changed})
        return JobCases.read(job, self.files, self.folder, as_in_job=True)


K_FACTORS = (0.25, 0.5, 1.0, 2.0)


def propose_grid(partners: Mapping[str, int], records: Mapping[str, int]) -> TuningGrid:
    """Return the values that are tried by default around the K of every secondary, given its number of records.

    With several secondaries, all K change by a common factor.

    >>> propose_grid({"rentals": 20}, {"rentals": 30}).k
    (5, 10, 20)
    >>> propose_grid({"rentals": 20, "schools": 5}, {"rentals": 30, "schools": 30}).k_factor
    (0.25, 0.5, 1.0)
    """
    factors: dict[tuple[int, ...], float] = {}
    for factor in K_FACTORS:
        found = TuningSetting(k_factor=factor).partners(partners)
        if all(k <= records[name] for name, k in found.items()):
            factors.setdefault(tuple(found.values()), factor)
    alone = len(partners) == 1
    return TuningGrid(
        k=tuple(k for (k,) in factors) if alone else (None,),
        k_factor=(None,) if alone else tuple(factors.values()),
        rate=(5e-4, 1e-3, 2e-3, 4e-3),
        hidden=(128, 256, 512),
        members=(1, 8),
    )


# Optuna, an optional extra


def _suggest_setting(trial: Any, grid: TuningGrid) -> TuningSetting:
    given = {
        name: trial.suggest_categorical(name, list(values)) for name, values in vars(grid).items() if name != "rate"
    }
    rates = [rate for rate in grid.rate if rate is not None]
    if len(rates) > 1:
        rate = float(f"{trial.suggest_float('rate', min(rates), max(rates), log=True):.3g}")
        return TuningSetting(**given, rate=rate)
    return TuningSetting(**given, rate=rates[0] if rates else None)


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
        import optuna  # noqa: PLC0415
        import optuna.storages.journal  # noqa: PLC0415
    except ImportError:
        message = "a search requires Optuna, which is not installed; pip install 'fedsim-vfl[search]'"
        raise SettingError(message, code="missing-package") from None
    return optuna
