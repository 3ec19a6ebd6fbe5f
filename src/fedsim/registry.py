"""One registry for each kind of choice: metrics, encodings, methods, presets, transports.

Command-line choices, the job schema, validation, ``fedsim explain`` and the documentation read their names from here, so
adding a choice takes one class and one registration::

    from fedsim.registry import METHODS

    METHODS.register("mine", MyMethod, summary="Weighs partners by their age.")

Built-in choices are registered as ``"module:attribute"`` and imported when they are first used, because a job file can
name a method on a machine that never loads torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fedsim.errors import SettingError, nearest_word


@dataclass(frozen=True)
class Choice:
    """A named choice: its value (or where to import it from), one line for people, and whether a job may name it."""

    name: str
    value: Any
    summary: str = ""
    in_jobs: bool = True


class Registry:
    """The choices of one kind, by name and in order of registration.

    Parameters
    ----------
    kind
        What is chosen, as messages call it: ``"method"``, ``"metric"``.

    Examples
    --------
    >>> colours = Registry("colour")
    >>> colours.register("red", 1, summary="The first.")
    >>> colours["red"], colours.names()
    (1, ('red',))
    >>> colours["rod"]
    Traceback (most recent call last):
    fedsim.errors.SettingError: colour 'rod' is unknown; did you mean 'red'? Choose from: red
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._choices: dict[str, Choice] = {}

    def register(self, name: str, value: Any, *, summary: str = "", in_jobs: bool = True) -> None:
        """Add a choice.

        Parameters
        ----------
        name
            The word in job files and on the command line; it must be new.
        value
            The object itself, or ``"package.module:attribute"`` to import when it is first used.
        summary
            One line for help texts, the job schema and the documentation.
        in_jobs
            Whether a job file may name it; simulations and estimators can use every choice.
        """
        if name in self._choices:
            raise SettingError(f"{self.kind} '{name}' is already registered", code="already-registered", name=name)
        self._choices[name] = Choice(name, value, summary, in_jobs)

    def __getitem__(self, name: str) -> Any:
        choice = self._choices.get(name)
        if choice is None:
            near = nearest_word(name, self._choices)
            hint = f" did you mean '{near}'?" if near else ""
            known = ", ".join(self._choices)
            raise SettingError(
                f"{self.kind} '{name}' is unknown;{hint} Choose from: {known}",
                code=f"unknown-{self.kind}",
                value=name,
                known=self.names(),
            )
        if isinstance(choice.value, str):
            module, _, attribute = choice.value.partition(":")
            return getattr(import_module(module), attribute)
        return choice.value

    def __contains__(self, name: object) -> bool:
        return name in self._choices

    def __iter__(self) -> Iterator[str]:
        return iter(self._choices)

    def names(self, *, in_jobs: bool = False) -> tuple[str, ...]:
        """List the names of all choices, or only of those that a job may name."""
        return tuple(choice.name for choice in self._choices.values() if choice.in_jobs or not in_jobs)

    def summary(self, name: str) -> str:
        """Return the line that describes a choice."""
        return self._choices[name].summary

    @contextmanager
    def temporarily(self, name: str, value: Any, *, summary: str = "", in_jobs: bool = True) -> Iterator[None]:
        """Register a choice for the length of a ``with`` block, for tests."""
        self.register(name, value, summary=summary, in_jobs=in_jobs)
        try:
            yield
        finally:
            del self._choices[name]
