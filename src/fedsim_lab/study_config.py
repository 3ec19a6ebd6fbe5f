"""A table or figure of the paper as a TOML file: datasets, methods, the varied setting, and the paper's scores."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from fedsim.contribution.rungs import Rung
from fedsim.errors import FileError, SettingError
from fedsim.hyperparameters import TrainingSettings

# Sections of TOML files


SectionType = TypeVar("SectionType")
SPLITS = ("random", "group")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the settings of a TOML file as a dictionary."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise FileError(f"{path} cannot be read as TOML: {error}") from error


def check_choice(value: str, known: Collection[str], setting: str) -> None:
    """Raise SettingError if a value is not one of the known ones."""
    if value not in known:
        raise SettingError(f"{setting} '{value}' is unknown; choose {' or '.join(known)}", code=f"unknown-{setting}")


def parse_section(kind: type[SectionType], settings: dict[str, Any], name: str) -> SectionType:
    """Parse the settings of one section into an object of its class."""
    known = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(settings) - known)
    if unknown:
        message = f"[{name}] has no setting '{unknown[0]}'; choose from {', '.join(sorted(known))}"
        raise SettingError(message, code="unknown-setting", where=name, name=unknown[0])
    try:
        return kind(**settings)
    except TypeError:
        message = f"[{name}] lacks a required setting; its settings are {', '.join(sorted(known))}"
        raise SettingError(message, code="missing-setting", where=name) from None


# Studies


STUDY_RUNGS = {
    "solo": Rung("solo", "Solo", "solo"),
    "solo-identifiers": Rung("solo-identifiers", "Solo + own identifiers", "solo", inputs="identifiers"),
    "secondary": Rung("secondary", "Secondary", "solo", inputs="secondary"),
    "exact": Rung("exact", "Exact", "exact"),
    "exact-mean": Rung("exact-mean", "Exact, mean features", "exact"),
    "combine": Rung("combine", "Combine", "solo", inputs="joined"),
    "top1sim": Rung("top1sim", "Top1Sim", "top1sim"),
    "featuresim": Rung("featuresim", "FeatureSim", "featuresim"),
    "avgsim": Rung("avgsim", "AvgSim", "avgsim"),
    "without-weight": Rung("without-weight", "w/o weight", "fedsim-without-weight"),
    "without-sort": Rung("without-sort", "w/o sort", "fedsim-without-sort"),
    "without-cnn": Rung("without-cnn", "w/o CNN", "fedsim-without-cnn"),
    "by-weight": Rung("by-weight", "sort by weight", "fedsim-by-weight"),
    "mean-merge": Rung("mean-merge", "mean merge gate", "fedsim-mean-merge"),
    "fedsim": Rung("fedsim", "FedSim", "fedsim"),
    "fedsim-same-noise": Rung("fedsim-same-noise", "FedSim, noise per identifier", "fedsim", partner="same-noise"),
    "placebo": Rung("placebo", "FedSim, placebo partner", "fedsim", partner="placebo"),
}
STUDY_SPLITS = ("fixed", *SPLITS)
VARIED = ("k", "learning_rate", "pieces", "preset", "tau", "noise", "metric", "split")
RUNG_SETTINGS = ("k", "learning_rate", "pieces", "preset")
WITHOUT_PARTNERS = ("solo", "solo-identifiers")
AT_MOST_ONE_PARTNER = (*WITHOUT_PARTNERS, "secondary", "exact", "exact-mean", "combine", "top1sim")
UNAFFECTED_RUNGS = {"k": AT_MOST_ONE_PARTNER, "pieces": WITHOUT_PARTNERS}
PaperFigure = tuple[float, float]


@dataclass(frozen=True)
class FastStudy(TrainingSettings):
    """Reduced settings of a study for ``--fast``."""

    records: int = 0
    values: list[Any] = field(default_factory=list)
    rungs: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class StudyPart:
    """One dataset of a study; ``label`` distinguishes parts that use the same dataset.

    ``one_to_one`` links the secondaries one to one among themselves (:class:`fedsim_lab.dataset_cases.DatasetCases`).

    ``vary`` names the setting that takes the ``values``; ``settings`` change single rungs by name, or all of them under
    ``all``; ``paper`` has the paper's mean and deviation by rung and value (``FedSim, 50``), or by rung alone if the
    value does not affect it.
    """

    dataset: str
    rungs: list[str]
    measure: str
    preset: str = "paper"
    split: str = "random"
    secondaries: list[str] = field(default_factory=list)
    one_to_one: bool = False
    records: int = 0
    k: int | None = None
    metric: str = ""
    tau: float | None = None
    noise: float = 0.0
    vary: str = ""
    values: list[Any] = field(default_factory=list)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    paper: Mapping[str, list[float]] = field(default_factory=dict)
    differs: str = ""
    label: str = ""
    fast: FastStudy = field(default_factory=FastStudy)

    def __post_init__(self) -> None:
        check_choice(self.split, STUDY_SPLITS, "split")
        if self.vary:
            check_choice(self.vary, VARIED, "vary")
        for word in [*self.rungs, *(word for word in self.settings if word != "all")]:
            check_choice(word, STUDY_RUNGS, "rung")
        for rung in self.rungs_at(None):
            rung.check()

    @property
    def title(self) -> str:
        """The title of its rows."""
        return f"{self.dataset}, {self.label}" if self.label else self.dataset

    def place(self, value: Any) -> str:
        """Return a readable name for the part at this value of the varied setting."""
        return f"{self.title}, {self.vary} {value}" if self.vary else self.title

    def shortened(self) -> StudyPart:
        """Return the part reduced for ``--fast``: fewer records, epochs, values and rungs, and larger steps."""
        given = {"all": {}, **self.settings}
        settings = {word: {**changes, **self.fast.given} for word, changes in given.items()}
        return replace(
            self,
            records=self.fast.records or self.records,
            values=self.fast.values or self.values,
            rungs=self.fast.rungs or self.rungs,
            settings=settings,
        )

    def rungs_at(self, value: Any) -> list[Rung]:
        """Return the rungs to train at this value of the varied setting."""
        found = []
        for word in self.rungs:
            changes = {"preset": self.preset, **self.settings.get("all", {}), **self.settings.get(word, {})}
            if self.vary in RUNG_SETTINGS and value is not None and not self.leaves(word):
                changes[self.vary] = value
            found.append(replace(STUDY_RUNGS[word], **changes))
        return found

    def leaves(self, word: str) -> bool:
        """Return whether the varied setting does not affect this rung."""
        return word in UNAFFECTED_RUNGS.get(self.vary, ())

    def in_paper(self, rung: Rung, value: Any) -> PaperFigure | None:
        """Return the paper's score for a rung at this value, if it has one."""
        figures = self.paper.get(f"{rung.name}, {value}", self.paper.get(rung.name))
        if figures is None:
            return None
        mean, deviation = (*figures, 0.0)[:2]
        return float(mean), float(deviation)


@dataclass(frozen=True)
class PaperStudy:
    """A table or figure: its place in the paper, what it should show, and its parts."""

    name: str
    title: str
    place: str
    parts: tuple[StudyPart, ...]
    reading: str = ""
    axis: str = ""

    def shortened(self) -> PaperStudy:
        """Return the study reduced for ``--fast``."""
        return replace(self, parts=tuple(part.shortened() for part in self.parts))


def read_study(path: Path) -> PaperStudy:
    """Read a study from a TOML file; its name is the name of the file."""
    words = read_toml(path)
    parts = tuple(_parse_part(part) for part in words.get("parts", []))
    if not parts:
        raise SettingError(f"{path} has no [[parts]]; name at least one dataset", code="no-parts")
    return parse_section(PaperStudy, {**words, "name": path.stem, "parts": parts}, "file")


def _parse_part(words: dict[str, Any]) -> StudyPart:
    return parse_section(
        StudyPart, {**words, "fast": parse_section(FastStudy, words.get("fast", {}), "parts.fast")}, "parts"
    )
