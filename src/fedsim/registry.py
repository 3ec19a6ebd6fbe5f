"""One registry for each kind of choice: metrics, encodings, methods, presets, engines, transports.

Command-line choices, the job schema, validation, ``fedsim explain`` and the documentation read their names from here,
so adding a choice takes one class and one registration::

    from fedsim.registry import METHODS

    METHODS.register("mine", MyMethod, summary="Weighs partners by their age.")

Installed packages, those beside the core among them, register their choices as plugins (:func:`load_plugins`).

Built-in choices are registered as ``"module:attribute"`` and imported when they are first used, because a job file can
name a method on a machine that never loads torch, and a secondary's process must not import what is above the cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, dataclass, field
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from fedsim.errors import SettingError, nearest_word

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Modules that take long to import, which the first use of one of their names does


def lazy_exports(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package whose public names are defined in modules that take long to import.

    Parameters
    ----------
    package
        The name of the package, which is ``__name__`` in its ``__init__``.
    homes
        The public names by the module that defines them, relative to the package.

    Examples
    --------
    >>> lazy_exports("fedsim", {"errors": ["FedSimError"]})("FedSimError").__module__
    'fedsim.errors'
    """
    modules = {name: f"{package}.{module}" for module, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(import_module(modules[name]), name)

    return get


class LazyModule:
    """A module that takes long to import, which the first use of one of its names does.

    Beside it, ``TYPE_CHECKING`` imports the module itself. (``importlib.util.LazyLoader`` is not safe with threads.)

    Parameters
    ----------
    module
        The full name of the module.

    Examples
    --------
    >>> LazyModule("fedsim.errors").FedSimError.__module__
    'fedsim.errors'
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        loaded = self.__dict__.get("_loaded")
        if loaded is None:  # import_module would cost 10 us at every use
            loaded = self._loaded = import_module(self._module)
        return getattr(loaded, name)


# Choices


@dataclass(frozen=True)
class Choice:
    """A named choice: its value (or where to import it from), one line for people, and whether a job may name it."""

    name: str
    value: Any
    summary: str = ""
    in_jobs: bool = True
    details: Mapping[str, Any] = field(default_factory=dict)


class Registry:
    """The choices of one kind, by name and in order of registration.

    Parameters
    ----------
    kind
        What is chosen, as it appears in messages: ``"method"``, ``"metric"``.

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

    def register(self, name: str, value: Any, *, summary: str = "", in_jobs: bool = True, **details: Any) -> None:
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
        **details
            Properties specific to this kind of choice, read with :meth:`detail`. For a method,
            ``secondary_network`` is a function from the preset's local network to the one that secondaries run;
            ``trees`` means that the primary of a job combines its network with boosted trees; ``party_dropout`` means
            that records can be trained without some of the secondaries. For a metric, ``unit`` is that of a distance;
            ``counts_bits`` says that distances are numbers of different bits, ``positions`` that it compares positions
            instead of filters, ``tau`` that the bound on an attack applies. For a split, ``needs_column`` means that
            the primary names a column for it, and ``compared_with`` is another split on which a ladder trains too.
        """
        if name in self._choices:
            raise SettingError(f"{self.kind} '{name}' is already registered", code="already-registered", name=name)
        self._choices[name] = Choice(name, value, summary, in_jobs, details)

    def __getitem__(self, name: str) -> Any:
        return load_value(self._choice(name).value)

    def _known(self) -> dict[str, Choice]:
        load_plugins()
        return self._choices

    def _choice(self, name: str) -> Choice:
        known = self._known()
        if name not in known:
            near = nearest_word(name, known)
            hint = f"did you mean '{near}'? Choose" if near else "choose"
            message = f"{self.kind} '{name}' is unknown; {hint} from: {', '.join(known)}"
            raise SettingError(message, code=f"unknown-{self.kind.replace(' ', '-')}", value=name, known=self.names())
        return known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known()

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def names(self, *, in_jobs: bool = False) -> tuple[str, ...]:
        """Return the names of all choices, or only of those that a job may name."""
        return tuple(choice.name for choice in self._known().values() if choice.in_jobs or not in_jobs)

    def summary(self, name: str) -> str:
        """Return the one-line description of a choice."""
        return self._known()[name].summary

    def detail(self, name: str, key: str) -> Any:
        """Return a detail of a choice, imported if it was given as ``"module:attribute"``, or None."""
        return load_value(self._choice(name).details.get(key))

    def name_of(self, value: type) -> str | None:
        """Return the name under which a class is registered, or None, without importing any other choice."""
        path = f"{value.__module__}:{value.__qualname__}"
        return next((choice.name for choice in self._known().values() if choice.value in (value, path)), None)

    @contextmanager
    def temporarily(self, name: str, value: Any, **options: Any) -> Iterator[None]:
        """Register a choice for the length of a ``with`` block, for tests; options as in :meth:`register`."""
        self.register(name, value, **options)
        try:
            yield
        finally:
            del self._choices[name]


def load_value(value: Any) -> Any:
    """Return the value itself, or import what ``"module:attribute"`` names."""
    if not isinstance(value, str) or ":" not in value:
        return value
    module, _, attribute = value.partition(":")
    return attrgetter(attribute)(import_module(module))


def load_plugins() -> None:
    """Import the modules that installed packages name as entry points of the group ``fedsim.plugins``.

    A plugin registers its choices when it is imported, which is before a registry is first read::

        [project.entry-points."fedsim.plugins"]
        mine = "my_package.fedsim_plugin"
    """
    waiting = _unloaded_plugins()
    while waiting:  # a plugin may itself read a registry
        waiting.pop(0).load()


@cache
def _unloaded_plugins() -> list[EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - packages that import a lazy name need no plugin

    return list(entry_points(group="fedsim.plugins"))


METHODS = Registry("method")
METHODS.register(
    "fedsim", "fedsim.splitnn.methods:FedSim", summary="Learns how much each similarity counts.", party_dropout=True
)
for _name, _class, _in_jobs, _summary in (
    ("avgsim", "AvgSim", True, "Averages the predictions over all partners."),
    ("featuresim", "FeatureSim", True, "Uses the similarity as one more feature of each pair."),
    ("top1sim", "Top1Sim", True, "Uses the most similar partner only."),
    (
        "exact",
        "Exact",
        False,
        "Uses the partner with equal identifiers; needs them in the clear, so it is for simulations only.",
    ),
    ("solo", "Solo", False, "Uses the primary's features only; needs no partner, so the primary can train it alone."),
):
    METHODS.register(_name, f"fedsim.splitnn.methods:{_class}", summary=_summary, in_jobs=_in_jobs)
METHODS.register(
    "stacked",
    "fedsim.splitnn.methods:FedSim",
    summary="FedSim beside boosted trees on the primary's columns and, where the job has one, on the embedding.",
    trees=True,
    party_dropout=True,
)
FEDSIM_VARIANTS = Registry("FedSim variant")  # functions from a preset's FedSim to another; fedsim_lab registers some

PRESETS = Registry("preset")
PRESETS.register(
    "modern",
    "fedsim.splitnn.secondary_model:MODERN",
    summary="The default: encoded numbers, attention beside the convolution, AdamW.",
)

METRICS = Registry("metric")
for _name, _in_jobs, _details, _summary in (
    ("euclidean", False, {}, "Straight-line distance of numbers."),
    ("great-circle", False, {"unit": "m"}, "Distance in metres on the globe."),
    ("days", False, {"unit": "days"}, "Days between two dates."),
    ("levenshtein", False, {"unit": "edits"}, "Number of edits between two texts."),
    ("levenshtein-normalised", False, {}, "Number of edits divided by the length of the longer text."),
    (
        "qgram-dice",
        False,
        {},
        "Share of q-grams that two names do not have in common, weighted by the rarity of their words.",
    ),
    (
        "hamming",
        True,
        {"unit": "bits", "counts_bits": True, "tau": True},
        "Number of bits in which two filters differ.",
    ),
    ("dice", True, {"tau": True}, "Share of ones that two filters do not have in common."),
    ("position", True, {"positions": True}, "Straight-line distance of encoded positions."),
):
    _constant = _name.upper().replace("-", "_")
    METRICS.register(_name, f"fedsim.linkage.metrics:{_constant}", summary=_summary, in_jobs=_in_jobs, **_details)

ENCODINGS = Registry("encoding")
for _name, _summary in (
    ("numeric", "Numbers, such as latitude."),
    ("date", "Dates."),
    ("string", "Text, such as a name."),
):
    ENCODINGS.register(_name, f"fedsim.linkage.encoding.column_encodings:{_name.title()}Filter", summary=_summary)
for _name, _class, _summary in (
    ("place", "PlacePosition", "Latitude and longitude, at any resolution."),
    ("number", "NumberPosition", "Numbers, at any resolution."),
    ("day", "DatePosition", "Dates, at any resolution."),
):
    ENCODINGS.register(_name, f"fedsim.linkage.encoding.column_encodings:{_class}", summary=_summary)

TOKENS = Registry("token kind")  # of direct linking
for _name, _class, _summary in (
    ("text", "TextTokens", "Names and titles, with typing errors, missing and reordered words."),
    ("place", "PlaceTokens", "Latitude and longitude, by cells of several widths."),
    ("number", "NumberTokens", "Numbers, by bins of several widths."),
    ("date", "DateTokens", "Dates, by bins of several widths."),
    ("code", "CodeTokens", "Values that are equal or not."),
):
    TOKENS.register(_name, f"fedsim.linkage.direct.token_kinds:{_class}", summary=_summary)

SHARES = Registry("share level")  # what an organisation lets the primary have of its rows
SHARES.register(
    "averages",
    "fedsim.linkage.direct.groups:AVERAGES",
    summary="Averages of at least m records in a cell; no record by itself.",
    direct=True,
)
SHARES.register(
    "rows",
    "fedsim.linkage.direct.groups:ROWS",
    summary="A vector per reached record, the average of m with similar features; exact at m = 1.",
    direct=True,
)
SHARES.register(
    "split",
    None,
    summary="Activations of single records at every step, for gradients that reveal labels: the paper.",
    direct=False,
)

SPLITS = Registry("split")  # functions from the records to split and a generator to a Split
for _name, _function, _details, _summary in (
    ("random", "draw_random", {"compared_with": "group"}, "Records one by one, as in the paper."),
    ("group", "draw_by_group", {"compared_with": "random"}, "Records with equal identifiers stay together."),
    ("time", "draw_by_time", {"needs_column": True}, "Trains on the oldest records and tests on the newest."),
    ("column", "draw_by_column", {"needs_column": True}, "Follows the cells of a column."),
):
    SPLITS.register(_name, f"fedsim.data.splits:{_function}", summary=_summary, **_details)

WIRE_FORMATS = Registry("wire format")
# ``dtype`` is the type of the array in a message; with the bytes of a value and of a row beside its values.
for _name, _dtype, _value_bytes, _row_bytes, _summary in (
    ("float32", "float32", 4, 0, "Exact."),
    ("float16", "float16", 2, 0, "Half the traffic."),
    ("bfloat16", "int16", 2, 0, "Half the traffic, with the range of float32."),
    ("int8", "int8", 1, 2, "A quarter of the traffic: whole multiples of a scale per row."),
):
    WIRE_FORMATS.register(
        _name,
        f"fedsim.protocol.cut_layer:{_name.upper()}",
        summary=_summary,
        dtype=_dtype,
        value_bytes=_value_bytes,
        row_bytes=_row_bytes,
    )

ENGINES = Registry("engine")  # where a linkage search runs
ENGINES.register("local", None, summary="This machine.")

TRANSPORTS = Registry("transport")
for _name, _path, _summary in (
    ("grpc", "grpc_transport:GrpcTransport", "gRPC with mutual TLS, between organisations."),
    ("in-process", "transport:InProcessTransport", "Queues between threads of one process."),
):
    TRANSPORTS.register(_name, f"fedsim.protocol.{_path}", summary=_summary)


# Every registry by its kind, as the job schema names it.
REGISTRIES = {registry.kind: registry for registry in list(globals().values()) if isinstance(registry, Registry)}

# Of packages beside the core; a job names none of these. The name of a command may follow that of its group.
COMMANDS = Registry("command")  # functions, or Typer groups of commands, hidden unless they have a ``section``
SERVICES = Registry("service")  # functions that the core calls, such as the client of a key server


def setting_type(setting: Field[Any]) -> str:
    """Return the type name of an encoding's setting; a deferred annotation is already a name."""
    return setting.type.__name__ if isinstance(setting.type, type) else str(setting.type)
