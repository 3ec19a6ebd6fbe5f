"""The constructor's parameters as plain values of the right type; the estimator keeps what it was given.

Searches hand over NumPy numbers and pandas indexes, which JSON does not know. Ranges are checked where a value is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args, get_origin, get_type_hints

from sklearn.utils import check_random_state

from fedsim.errors import SettingError
from fedsim.estimator.pairs import columns_named

SEEDS = 2**31 - 1
SHOWN = (str, int, float, type(None))  # a message may repeat these values; anything else could be somebody's data
WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a word",
    list: "a list",
    dict: "a mapping",
    type(None): "None",
}


@dataclass(frozen=True)
class Settings:
    """What the user asked for; the annotations are what is checked."""

    link_on: str | int | list[Any] | dict[Any, Any]
    metric: Any
    k: int
    sigma: float
    tau: float | None
    method: Any
    preset: str
    use_identifiers: bool
    kinds: dict[Any, Any] | None
    epochs: int | None
    batch_size: int | None
    learning_rate: float | None
    patience: int | None
    validation_fraction: float
    validation_split: str
    device: str

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(Settings).items():
            _check(name, getattr(self, name), hint)
        if not (isinstance(self.method, str) or (hasattr(self.method, "build") and not isinstance(self.method, type))):
            raise SettingError(f"a {type(self.method).__name__} is no method; give a word such as 'fedsim'")


def settings_of(estimator: Any) -> Settings:
    """An estimator's parameters, checked; names of columns are text, as in our frames."""
    given = {entry.name: plain(getattr(estimator, entry.name)) for entry in fields(Settings)}
    settings = Settings(**given)
    kinds = settings.kinds and {str(name): word for name, word in settings.kinds.items()}
    return Settings(**{**given, "link_on": columns_named(settings.link_on), "kinds": kinds})


def plain(value: Any) -> Any:
    """NumPy and pandas values as Python's own.

    >>> import numpy as np
    >>> plain((np.int64(3), {"k": np.array(["lat", "lon"])}))
    [3, {'k': ['lat', 'lon']}]
    """
    if isinstance(value, Mapping):
        return {plain(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    as_list = getattr(value, "tolist", None) or getattr(value, "to_list", None)
    return as_list() if callable(as_list) and not isinstance(value, type) else value


def seed_from(random_state: Any) -> int:
    """A seed by scikit-learn's rules: a number, a generator that is drawn from, or chance."""
    try:
        return int(check_random_state(random_state).randint(SEEDS))
    except (TypeError, ValueError):
        raise SettingError(
            f"random_state={_shown(random_state)}; give a whole number from 0 to {2**32 - 1}, a RandomState or None"
        ) from None


def _check(name: str, value: Any, hint: Any) -> None:
    if hint is Any:
        return
    kinds = [get_origin(kind) or kind for kind in (get_args(hint) or (hint,))]
    allowed = (*kinds, int) if float in kinds else tuple(kinds)
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in kinds):
        raise SettingError(f"{name}={_shown(value)}; give {' or '.join(WORDS[kind] for kind in kinds)}")


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, SHOWN) else f"<{type(value).__name__}>"
