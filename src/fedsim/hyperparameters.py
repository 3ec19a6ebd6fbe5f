"""The hyper-parameters of a training, declared once: job files, estimators, ladder, tuning and lab all use these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Self

from fedsim.errors import SettingError
from fedsim.validation import validate_integer, validate_number

# Names of earlier versions, and what they are called now.
RENAMED: Mapping[str, str] = MappingProxyType({"batch": "batch_size", "rate": "learning_rate", "hidden": "width"})


@dataclass(frozen=True)
class Hyperparameter:
    """What is known of a hyper-parameter; None always keeps the preset's value.

    Parameters
    ----------
    kind
        ``int`` or ``float``.
    place
        The dotted name in a configuration or a preset where the value goes, such as ``"optimiser.rate"``.
    low, high
        The range; ``low`` is excluded if ``above``.
    example, meaning
        For documentation.
    shapes
        Whether weights fit only networks of the same value.
    tried
        The values that tuning tries by default.
    """

    kind: type[int] | type[float]
    place: str
    low: float
    high: float
    example: float
    meaning: str
    above: bool = False
    shapes: bool = False
    tried: tuple[float, ...] = ()

    def validate(self, value: Any, name: str) -> Any:
        """Return the value, or raise ``SettingError`` if its type or range is wrong."""
        if self.kind is int:
            return validate_integer(value, name, least=int(self.low), most=int(self.high))
        low = {"above" if self.above else "least": self.low}
        return validate_number(value, name, most=self.high, **low)

    def place_in(self, config: Any, value: Any) -> Any:
        """Return a configuration or preset with the value; one without such a place is returned unchanged."""
        return _replace_at(config, self.place.split("."), value)


def _replace_at(config: Any, place: list[str], value: Any) -> Any:
    if not hasattr(config, place[0]):
        return config
    inner = getattr(config, place[0])
    if len(place) > 1:
        value = _replace_at(inner, place[1:], value)
    return replace(config, **{place[0]: (value,) if isinstance(inner, tuple) else value})


def _hyperparameter(kind: type[int] | type[float], place: str, **known: Any) -> Any:
    return field(default=None, metadata={"hyperparameter": Hyperparameter(kind, place, **known)})


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How a model is trained; ``None`` keeps the value of the preset, which is registered under a name.

    A hyper-parameter is added here, with its range and documentation, and nowhere else.

    >>> TrainingSettings(epochs=3, width=64).given
    {'epochs': 3, 'width': 64}
    """

    preset: str = "modern"
    epochs: int | None = _hyperparameter(
        int,
        "epochs",
        low=1,
        high=100_000,
        example=60,
        meaning="Largest number of passes over the training records. Default: 40 to 100 for `modern`, fewer for more "
        "records; 100 for `paper`.",
    )
    batch_size: int | None = _hyperparameter(
        int,
        "batch",
        low=1,
        high=1_000_000,
        example=512,
        meaning="Records per training step. Default: 32 to 256 for `modern`, by the number of records; 128 for "
        "`paper`. Larger batches need fewer messages.",
    )
    learning_rate: float | None = _hyperparameter(
        float,
        "optimiser.rate",
        low=0,
        high=100,
        above=True,
        example=0.002,
        tried=(5e-4, 1e-3, 2e-3, 4e-3),
        meaning="Learning rate of the optimiser. Default: set by the preset.",
    )
    width: int | None = _hyperparameter(
        int,
        "local.hidden",
        low=1,
        high=100_000,
        example=256,
        shapes=True,
        tried=(128, 256, 512),
        meaning="Hidden units of the local network of every party. Default: 256 for `modern`, 200 for `paper`.",
    )
    patience: int | None = _hyperparameter(
        int,
        "patience",
        low=1,
        high=100_000,
        example=10,
        meaning="After this many epochs without improvement on the validation records, `modern` returns to the best "
        "weights and ends with at most the last fifth of the epochs, whose learning rates are small. Default: a fifth "
        "of the epochs for `modern`; with `paper` all epochs run. The weights of the best epoch are used in either "
        "case.",
    )
    members: int | None = _hyperparameter(
        int,
        "members",
        low=1,
        high=64,
        example=8,
        shapes=True,
        tried=(1, 8),
        meaning="Number of networks that the primary trains side by side and averages. They share the networks of the "
        "secondaries, so they add no traffic. Default: 8 for `modern`, 1 for `paper`.",
    )
    party_dropout: float | None = _hyperparameter(
        float,
        "party_dropout",
        low=0,
        high=0.5,
        example=0.1,
        meaning="Share of the training records that do without a secondary, drawn for each secondary and step. The "
        'model can then predict while a secondary is away (`serving.when_partner_is_away = "others"`), and the report '
        "says how much larger the error is without each. Methods `fedsim` and `stacked` only. Default: 0.",
    )

    def __post_init__(self) -> None:
        for name, rule in hyperparameters().items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, rule.validate(getattr(self, name), name))

    @property
    def given(self) -> dict[str, Any]:
        """The hyper-parameters that are set, by name."""
        values = {name: getattr(self, name) for name in hyperparameters()}
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def of(cls, source: Any) -> Self:
        """Return the training settings among the attributes of an object, such as a section of a job."""
        return cls(**{entry.name: getattr(source, entry.name) for entry in fields(TrainingSettings)})

    def apply(self, config: Any) -> Any:
        """Return a configuration or preset with the hyper-parameters that are set, each at its place."""
        for name, value in self.given.items():
            config = hyperparameters()[name].place_in(config, value)
        return config


@cache
def hyperparameters() -> dict[str, Hyperparameter]:
    """Return all hyper-parameters by name."""
    return {
        entry.name: entry.metadata["hyperparameter"]
        for entry in fields(TrainingSettings)
        if "hyperparameter" in entry.metadata
    }


def refuse_renamed(names: Mapping[str, Any]) -> None:
    """Raise ``SettingError`` for a name of an earlier version; the message has the new one.

    >>> refuse_renamed({"batch": 64})
    Traceback (most recent call last):
    fedsim.errors.SettingError: 'batch' is called 'batch_size' now; rename it
    """
    for name in RENAMED.keys() & names.keys():
        message = f"'{name}' is called '{RENAMED[name]}' now; rename it"
        raise SettingError(message, code="renamed-setting", name=name, renamed=RENAMED[name])
