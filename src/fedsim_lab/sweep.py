"""Hyperparameter sweeps over a dataset of the lab, using the tuner of jobs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import product

from fedsim.contribution.rungs import ResultStore, Rung, SplitArrays
from fedsim.contribution.tuning import Grid, Setting, Tuner, TuningTrial, check_partners, rank_trials
from fedsim_lab.dataset_cases import DatasetCases, LinkageOverrides
from fedsim_lab.study_config import SPLITS, check_choice
from fedsim_lab.study_runner import StudyContext, load_sample

GRIDS: Mapping[str, Grid] = {
    # Appendix "Experimental Details", "Hyperparameters"; width is that of the layer of the local networks.
    "paper": {
        "k": (50, 100),
        "learning_rate": (3e-4, 1e-3, 3e-3, 1e-2),
        "batch_size": (32, 128),
        "width": (100, 200, 400),
        "decay": (1e-5, 1e-4),
    },
    "partners": {"k": (5, 10, 20, 50)},
    "privacy": {"metric": ("hamming",), "tau": (None, 1e-2, 1e-3, 1e-4)},
    "rate": {"learning_rate": (3e-4, 1e-3, 3e-3, 1e-2)},
}
LINKAGE = ("k", "metric", "tau")  # settings of the linkage; all others are those of a rung


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

    def rung(self, setting: Setting) -> Rung:
        """Return the rung to train at a setting."""
        own = Rung(self.method, self.method, self.method, preset=self.preset, epochs=self.epochs)
        return replace(own, **{name: value for name, value in setting.items() if name not in LINKAGE})


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
        """The largest K."""
        return min(len(secondary.table) for secondary in self._linked(None, "", None).taking_part)

    def cases(self, setting: Setting) -> Iterator[SplitArrays]:
        cases = self._linked(setting.get("k"), setting.get("metric", ""), setting.get("tau"))
        return cases.each([self.subject.split], range(self.bench.seeds))

    def rung(self, setting: Setting) -> Rung:
        return self.subject.rung(setting)

    @cached_property
    def _linked(self) -> Callable[..., DatasetCases]:
        return lru_cache(maxsize=4)(self._link)

    def _link(self, k: int | None, metric: str, tau: float | None) -> DatasetCases:
        dataset = load_sample(self.subject.dataset, self.bench.data, self.subject.records)
        return DatasetCases(dataset, LinkageOverrides(k, metric, tau), self.subject.secondaries)


def grid_settings(grid: Grid) -> list[Setting]:
    """Return every combination of the values of a grid."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def dataset_tuner(subject: SweepSubject, grid: Grid, bench: StudyContext) -> Tuner:
    """Return the tuner of a dataset; its results are stored in the folder of the bench."""
    tuned = DatasetSubject(subject, bench)
    if "k" in grid:
        check_partners(tuned.name, grid, tuned.most_partners)
    return Tuner(tuned, ResultStore(bench.out), bench.report, bench.trainer)


def sweep_dataset(tuner: Tuner, grid: Grid) -> list[TuningTrial]:
    """Train every combination of a grid and return the trials, the best first."""
    settings = grid_settings(grid)
    return rank_trials(tuner.try_setting(one, f"[{place} of {len(settings)}]") for place, one in enumerate(settings, 1))
