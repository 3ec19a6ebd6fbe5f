"""Hyperparameter sweeps over a dataset of the lab, using the tuner of jobs."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from fedsim.contribution.rungs import ResultStore, Rung, SplitArrays
from fedsim.contribution.tuning import TRAINING_SETTINGS, Tuner, TuningGrid, TuningSetting
from fedsim_lab.dataset_cases import DatasetCases, LinkageOverrides
from fedsim_lab.experiment_config import SPLITS, check_choice
from fedsim_lab.study_runner import StudyContext, load_sample

GRIDS = {
    # Appendix "Experimental Details", "Hyperparameters"; hidden is the layer of the local networks.
    "paper": TuningGrid(
        k=(50, 100), rate=(3e-4, 1e-3, 3e-3, 1e-2), batch=(32, 128), hidden=(100, 200, 400), decay=(1e-5, 1e-4)
    ),
    "partners": TuningGrid(k=(5, 10, 20, 50)),
    "privacy": TuningGrid(metric=("hamming",), tau=(None, 1e-2, 1e-3, 1e-4)),
    "rate": TuningGrid(rate=(3e-4, 1e-3, 3e-3, 1e-2)),
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

    def rung(self, setting: TuningSetting) -> Rung:
        """Return the rung to train at a setting."""
        own = Rung(self.method, self.method, self.method, preset=self.preset, epochs=self.epochs)
        return replace(own, **{name: getattr(setting, name) for name in TRAINING_SETTINGS})


@dataclass(frozen=True, eq=False)
class DatasetSubject:
    """A sweep's subject with its data, in the form that the tuner expects."""

    subject: SweepSubject
    bench: StudyContext

    @property
    def name(self) -> str:
        return self.subject.dataset

    @property
    def most_partners(self) -> int:
        return min(len(secondary.table) for secondary in self._linked(None, "", None).taking_part)

    def cases(self, setting: TuningSetting) -> Iterator[SplitArrays]:
        cases = self._linked(setting.k, setting.metric, setting.tau)
        return cases.each([self.subject.split], range(self.bench.seeds))

    def rung(self, setting: TuningSetting) -> Rung:
        return self.subject.rung(setting)

    def identity(self) -> Any:
        return [asdict(self.subject), self.bench.seeds]

    @cached_property
    def _linked(self) -> Callable[..., DatasetCases]:
        return lru_cache(maxsize=4)(self._link)

    def _link(self, k: int | None, metric: str, tau: float | None) -> DatasetCases:
        dataset = load_sample(self.subject.dataset, self.bench.data, self.subject.records)
        return DatasetCases(dataset, LinkageOverrides(k, metric, tau), self.subject.secondaries)


def dataset_tuner(subject: SweepSubject, bench: StudyContext) -> Tuner:
    """Return the tuner of a dataset; its results are stored in the folder of the bench."""
    return Tuner(DatasetSubject(subject, bench), ResultStore(bench.out), bench.report, bench.trainer)
