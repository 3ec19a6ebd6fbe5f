"""Search for the best settings of a job's training: one after the other, each with the best values of those before it.

Settings are judged by the validation records alone; the test records are looked at for the best one. Every training is
stored, so a search that was stopped continues, and another search in the same folder repeats nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedsim.config.job import Job
from fedsim.config.party_file import PartyFile
from fedsim.contribution.job_ladder import JobCases
from fedsim.contribution.ladder import with_settings
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
from fedsim.errors import SettingError
from fedsim.hyperparameters import hyperparameters, refuse_renamed
from fedsim.training.data import selection_key

# What is tried, by name: a hyper-parameter, ``k`` of every secondary, or ``k_factor``, which multiplies the K of each.
Setting = Mapping[str, Any]
Grid = Mapping[str, Sequence[Any]]
K_FACTORS = (0.25, 0.5, 1.0, 2.0)


class TuningSubject(Protocol):
    """What is tuned: its name, and its arrays and training at a setting."""

    @property
    def name(self) -> str: ...

    def cases(self, setting: Setting) -> Iterable[SplitArrays]: ...

    def rung(self, setting: Setting) -> Rung: ...


@dataclass(frozen=True)
class TuningTrial:
    """A setting with its metrics, means over the seeds.

    ``label`` names what they measure, such as log(price); ``records`` is the smallest number of validation records.
    """

    setting: Setting
    validation: dict[str, float]
    test: dict[str, float] = field(repr=False)
    label: str = ""
    records: int = 0

    @property
    def score(self) -> tuple[float, ...]:
        """The greater, the better."""
        return selection_key(self.validation)


def describe_setting(setting: Setting) -> str:
    """Return what is set.

    >>> describe_setting({"k": 20, "learning_rate": 0.001})
    'k 20, learning rate 0.001'
    """
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in setting.items()) or "no change"


def rank_trials(trials: Iterable[TuningTrial]) -> list[TuningTrial]:
    """Return trials, the best first."""
    return sorted(trials, key=lambda trial: trial.score, reverse=True)


@dataclass(frozen=True, eq=False)
class Tuner:
    """Trains a subject at many settings; ``trainer`` gets the name of a trial."""

    subject: TuningSubject
    results: ResultStore
    report: MessageCallback = print
    trainer: Callable[[str], RungTrainer] = lambda _: run_training

    def tune(self, grid: Grid) -> list[TuningTrial]:
        """Tune one setting after the other, and return all trials, the best first."""
        total = 1 + sum(map(len, grid.values()))
        best: Setting = {}
        trials = [self.try_setting(best, f"[1 of at most {total}]")]
        for name, values in grid.items():
            for setting in ({**best, name: value} for value in values):
                if setting not in [trial.setting for trial in trials]:
                    trials.append(self.try_setting(setting, f"[{len(trials) + 1} of at most {total}]"))
            best = rank_trials(trials)[0].setting
        return rank_trials(trials)

    def try_setting(self, setting: Setting, number: str) -> TuningTrial:
        """Train one setting on every case, except where results exist."""
        rung, lines, records = self.subject.rung(setting), [], []
        place = f"{number} {self.subject.name}, {describe_setting(setting)}"
        for arrays in self.subject.cases(setting):
            # Reports nothing, because a report shows the test score.
            train_missing([arrays], [rung], self.results, lambda _: None, self.trainer(place))
            lines.append(self.results.line(rung.result_key(arrays)))
            records.append(len(arrays.split.validation))
        validation, test = (
            {name: float(np.mean([line[part][name] for line in lines])) for name in lines[0][part]}
            for part in ("validation", "test")
        )
        label = lines[0].get("label", "")
        of_label = f" of {label}" if label else ""
        self.report(f"{place}: validation {format_metrics(validation)}{of_label}")
        return TuningTrial(setting, validation, test, label, min(records))


def check_partners(name: str, grid: Grid, most: int) -> None:
    """Raise ``SettingError`` for a K above the number of records, before any training starts."""
    for k in grid.get("k", ()):
        if not 1 <= k <= most:
            message = f"k={k}, but the secondary of {name} has {most:,} records; choose k between 1 and {most:,}"
            raise SettingError(message, code="out-of-range", name="k", limit=most)


class JobSubject:
    """A job with its own features, split, method and protection, and all tables in this process.

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

    def cases(self, setting: Setting) -> Iterable[SplitArrays]:
        return self._linked(setting).cases(self.seeds, [self.job.task.split])

    def rung(self, setting: Setting) -> Rung:
        method = self.job.training.method
        (own,) = with_settings(self.job.training.settings, [Rung(method, method, method)])
        given: dict[str, Any] = {} if self.epochs is None else {"epochs": self.epochs}
        return replace(own, **given | {name: setting[name] for name in hyperparameters() if name in setting})

    def partners(self, setting: Setting) -> dict[str, int]:
        """Return the K of every secondary."""
        factor = setting.get("k_factor", 1.0)
        return {name: setting.get("k") or max(1, int(factor * terms.k)) for name, terms in self.job.secondaries.items()}

    def job_settings(self, setting: Setting) -> dict[tuple[str, ...], Any]:
        """Return what is set by the place of the setting in a job file."""
        given: dict[tuple[str, ...], Any] = {
            ("training", name): value for name, value in setting.items() if name in hyperparameters()
        }
        if setting.keys() & {"k", "k_factor"}:
            given |= {("secondaries", name, "k"): k for name, k in self.partners(setting).items()}
        return given

    def grid(self, given: Grid) -> Grid:
        """Return what is tried: the given values, else values around the job's K and those proposed for all jobs.

        With several secondaries, all K change by a common factor.
        """
        records = {name: len(table) for name, table in self._linked({}).secondaries.items()}
        check_partners(self.name, given, min(records.values()))
        factors: dict[tuple[int, ...], float] = {}
        for factor in K_FACTORS:
            partners = self.partners({"k_factor": factor})
            if all(k <= records[name] for name, k in partners.items()):
                factors.setdefault(tuple(partners.values()), factor)
        proposed: dict[str, Sequence[Any]] = {"k": [k for (k,) in factors]} if len(records) == 1 else {}
        proposed = proposed or {"k_factor": list(factors.values())}
        if "k" in given:
            proposed = {"k": given["k"]}
        return {**proposed, **{name: rule.tried for name, rule in hyperparameters().items() if rule.tried}, **given}

    def _linked(self, setting: Setting) -> JobCases:
        return self._cases(tuple(self.partners(setting).values()))

    def _read(self, partners: tuple[int, ...]) -> JobCases:
        terms = zip(self.job.secondaries.items(), partners, strict=True)
        changed = {name: own.model_copy(update={"k": k}) for (name, own), k in terms}
        job = self.job.model_copy(update={"secondaries": changed})
        return JobCases.read(job, self.files, self.folder, as_in_job=True)


def parse_values(given: Iterable[str], kinds: Mapping[str, Callable[[str], Any]]) -> dict[str, list[Any]]:
    """Parse the values to try, such as ``width=128,256``, of the settings whose types are given.

    >>> parse_values(["k=5,10", "learning_rate=0.01"], {"k": int, "learning_rate": float})
    {'k': [5, 10], 'learning_rate': [0.01]}
    """
    values = {}
    for text in given:
        name, _, listed = text.partition("=")
        refuse_renamed({name: listed})
        if name not in kinds:
            message = f"'{name}' is not a setting that can be tried; choose {' or '.join(kinds)}"
            raise SettingError(message, code="unknown-axis", axis=name)
        try:
            values[name] = [kinds[name](word) for word in listed.split(",")]
        except ValueError:
            message = f"'{text}' is not a list of values separated by commas, such as k=5,10; correct it"
            raise SettingError(message, code="invalid-axis", axis=name) from None
    return values


def tuned_types() -> dict[str, Callable[[str], Any]]:
    """Return the types of the settings of a job that can be tuned, by name."""
    return {"k": int, **{name: rule.kind for name, rule in hyperparameters().items()}}
