"""Read TOML configuration files into pydantic models; report every fault with its line, its value and what is valid."""

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError
from pydantic_core import PydanticCustomError, core_schema

from fedsim.errors import FileError, SettingError, nearest_word, replace_unprintable
from fedsim.registry import Registry
from fedsim.storage.files import missing_file_hint

MAX_FILE_BYTES = 256 * 1024
MAX_KEY_DEPTH = 32
# tomllib takes minutes for a key of a hundred thousand parts, so deep keys are refused before parsing.
_DEEP_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{MAX_KEY_DEPTH}}}""")
_POSITION = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_PIECE = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|#[^\n]*|\n|[\[\]{}]|[^"'#\n\[\]{}]+''',
    re.DOTALL,
)
_KEY = re.compile(r"""(?:"(?:\\.|[^"\\\n])*"|'[^'\n]*'|[^"'=\n])+""")

SettingLines = Mapping[tuple[str, ...], int]


class ConfigSection(BaseModel):
    """A section of settings; unknown settings are refused and types are not converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ConfigFile(ConfigSection):
    """The settings of a complete file."""

    _path: Path = PrivateAttr(default=Path())

    @property
    def path(self) -> Path:
        """The file that the settings were read from; empty if they did not come from a file."""
        return self._path

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and validate the configuration file at ``path``."""
        text = read_text_file(path)
        settings = parse_toml(text, path)
        try:
            config = cls.model_validate(settings, context={"folder": path.parent})
        except ValidationError as error:
            raise _faults_error(error, cls, str(path), text) from None
        config._path = path
        return config

    @classmethod
    def parse(cls, settings: Mapping[str, Any], where: str) -> Self:
        """Validate settings that did not come from a file; ``where`` names their origin in errors."""
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise _faults_error(error, cls, where) from None


@dataclass(frozen=True)
class ConfigFault:
    """A fault of a configuration file; ``message`` includes ``setting`` (a dotted name) and ``line``, if known."""

    code: str
    setting: str
    line: int | None
    message: str


class ConfigFileError(SettingError):
    """A configuration file has faults: the message shows the first one, ``faults`` has all of them."""

    def __init__(self, faults: Sequence[ConfigFault]) -> None:
        more = len(faults) - 1
        others = f" ({more} more {'fault' if more == 1 else 'faults'} in this file)" if more else ""
        super().__init__(f"{faults[0].message}{others}", code=faults[0].code, setting=faults[0].setting)
        self.faults = list(faults)


class RuleError(SettingError):
    """A rule between settings is broken; ``at`` is the setting to change, relative to the section that has the rule."""

    def __init__(self, message: str, *at: str, code: str) -> None:
        super().__init__(message, code=code)
        self.at = at


FILL_IN_MARK = "FILL IN:"  # in the comment of a line that `fedsim init` could not complete


def unfilled_lines(path: Path) -> list[int]:
    """Return the numbers of the lines that still have the mark, in a comment or as a value."""
    lines = read_text_file(path).splitlines()
    return [number for number, line in enumerate(lines, 1) if FILL_IN_MARK.rstrip(":") in line]


def require_filled_in(path: Path) -> None:
    """Raise a ``SettingError`` if the file has lines with the mark."""
    if lines := unfilled_lines(path):
        where, it = ("line", "it") if len(lines) == 1 else ("lines", "them")
        fault = f"{path} is marked 'FILL IN' in {where} {', '.join(map(str, lines))}"
        raise SettingError(f"{fault}; complete {it} and delete '{FILL_IN_MARK}'", code="not-filled-in", lines=lines)


# Settings of models. The title says which values are valid, the docstring of the attribute what the setting means.


def setting(default: Any = ..., *, example: Any = None, **options: Any) -> Any:
    """Declare a setting with an example; it is required unless it has a default."""
    return Field(default, examples=None if example is None else [example], **options)


def whole_number(low: int, high: int) -> Any:
    """Annotate an integer setting with its range."""
    return Field(ge=low, le=high, title=f"a whole number from {low:,} to {high:,}")


def real_number(above: float, most: float) -> Any:
    """Annotate a float setting with its range."""
    return Field(gt=above, le=most, title=f"a number above {above:g} and up to {most:g}")


@dataclass(frozen=True)
class OneOf:
    """Annotate a text setting that names one of the choices of a registry: ``Annotated[str, OneOf(METHODS)]``.

    The registry is read at validation time, so choices registered by other packages are valid, too. A mapping works as
    a registry whose choices may all be used in jobs.
    """

    choices: Registry | Mapping[str, Any]

    def names(self) -> list[str]:
        """Return the names that a file may use."""
        return list(self.choices.names(in_jobs=True) if isinstance(self.choices, Registry) else self.choices)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        def check(name: str) -> str:
            if name not in self.names():
                note = " is only available in simulations" if name in self.choices else ""
                raise PydanticCustomError("unknown_choice", "unknown", {"choices": self.names(), "note": note})
            return name

        return core_schema.no_info_after_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        kind = {"x-registry": self.choices.kind} if isinstance(self.choices, Registry) else {}
        return {**handler(schema), "enum": self.names(), **kind}


# Reading files


def read_text_file(path: Path) -> str:
    """Read a small UTF-8 text file."""
    try:
        if path.exists() and not path.is_file():
            raise FileError(f"{path} is not a regular file; give the path of a file", code="not-a-file")
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "invalid path"
        hint = missing_file_hint(path) if isinstance(error, FileNotFoundError) else "check the path"
        raise FileError(f"cannot read {path}: {reason}; {hint}", code="unreadable-file") from error
    if len(content) > MAX_FILE_BYTES:
        message = f"{path} is larger than {MAX_FILE_BYTES // 1024} kB; a configuration file contains settings, not data"
        raise FileError(message, code="file-too-large", limit=MAX_FILE_BYTES)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise FileError(f"{path}, line {line}: invalid UTF-8; save the file as UTF-8", code="not-utf-8") from None


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Parse TOML; ``path`` is named in errors."""
    deep = _DEEP_KEY.search(text)
    if deep:
        line = text[: deep.start()].count("\n") + 1
        message = f"{path}, line {line}: a key of {MAX_KEY_DEPTH} or more parts; no setting is nested that deeply"
        raise FileError(message, code="invalid-toml")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        position = _POSITION.search(str(error))
        line = text.count("\n") + 1 if position is None or position[1] is None else int(position[1])
        reason = str(error)[: position.start()] if position else str(error)
        message = f"{path}, line {line}: invalid TOML: {shorten(reason)}; correct the line"
        raise FileError(message, code="invalid-toml", line=line) from None
    except (ValueError, RecursionError):
        message = f"{path}: invalid TOML: too many nested brackets, a number that is too long or an invalid date"
        raise FileError(message, code="invalid-toml") from None


def shorten(text: str, longest: int = 60) -> str:
    """Return text on one line and cut to a maximal length, for messages.

    >>> shorten("two\\nlines")
    'two lines'
    """
    plain = replace_unprintable(text)
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"


# Line numbers. tomllib reports none, so the statements of a file that is known to be valid TOML are split here.


def find_setting_lines(text: str) -> dict[tuple[str, ...], int]:
    """Return the line of every table and key of a valid TOML text; keys inside of values are not listed."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for line, statement in _statements(text):
        is_header = statement.startswith("[")
        key = _KEY.match(statement)
        if not is_header and key is None:
            continue
        # tomllib parses the key itself: it knows all about quotes and dots.
        parsed: Any = tomllib.loads(statement if is_header else f"{key[0] if key else ''}=0")
        place: tuple[str, ...] = ()
        while isinstance(parsed, dict | list) and parsed:
            place += (next(iter(parsed)),) if isinstance(parsed, dict) else ()
            parsed = next(iter(parsed.values() if isinstance(parsed, dict) else parsed))
        table = place if is_header else table
        full = place if is_header else table + place
        for end in range(1, len(full) + 1):
            lines.setdefault(full[:end], line)
    return lines


def set_values(text: str, values: Mapping[tuple[str, ...], str]) -> str:
    """Return a valid TOML text with other values; everything else stays as it is, comments included.

    Parameters
    ----------
    text
        The text; settings that are replaced have their value on one line.
    values
        New values as TOML, by the path of the setting. A setting that is missing is added to its table.

    Examples
    --------
    >>> set_values("[a]\\nx = 1 # one\\n", {("a", "x"): "2", ("a", "y"): "3", ("b", "z"): "4"}).splitlines()
    ['[a]', 'y = 3', 'x = 2 # one', '', '[b]', 'z = 4']
    """
    for path, value in values.items():
        lines, places = text.splitlines(), find_setting_lines(text)
        *table, name = path
        if path in places:
            key, _, old = lines[places[path] - 1].partition("=")
            comment = re.sub(r"""^("(\\.|[^"\\])*"|'[^']*'|[^#"'])*""", "", old)
            lines[places[path] - 1] = f"{key.rstrip()} = {value}{f' {comment}' if comment else ''}"
        elif tuple(table) in places:
            lines.insert(places[tuple(table)], f"{name} = {value}")
        else:
            lines += ["", f"[{'.'.join(table)}]", f"{name} = {value}"]
        text = "\n".join(lines) + "\n"
    return text


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield headers and settings with the number of their first line, without comments."""
    line, start, depth = 1, 1, 0
    parts: list[str] = []
    for piece in _PIECE.findall(text):
        depth += (piece in ("[", "{")) - (piece in ("]", "}"))
        if piece == "\n" and depth <= 0:
            yield start, "".join(parts).strip()
            start, depth, parts = line + 1, 0, []
        elif not piece.startswith("#"):
            parts.append(piece)
        line += piece.count("\n")
    yield start, "".join(parts).strip()


# From pydantic's errors to messages


def _faults_error(error: ValidationError, kind: type[BaseModel], where: str, text: str = "") -> ConfigFileError:
    """Describe all faults in the order of their lines."""
    faults, lines = error.errors(include_url=False), find_setting_lines(text)
    # A required setting whose name is misspelt is reported once, as unknown, and not also as missing.
    unknown = [fault["loc"] for fault in faults if fault["type"] == "extra_forbidden"]
    misspelt = {(*path[:-1], nearest_word(path[-1], _known_settings(kind, path[:-1]))) for path in unknown}
    sections = {path[:-1] for path in unknown if removal_reason(path)}  # a removed setting is the fault, not a gap
    shown = [
        fault
        for fault in faults
        if fault["type"] != "missing" or not (fault["loc"] in misspelt or fault["loc"][:-1] in sections)
    ]
    found = dict.fromkeys(_describe_fault(fault, kind, where, lines) for fault in shown)
    return ConfigFileError(sorted(found, key=lambda fault: fault.line or math.inf))


def _describe_fault(fault: Any, kind: type[BaseModel], where: str, lines: SettingLines) -> ConfigFault:
    context = fault.get("ctx", {})
    cause = context.get("error")
    location = (*fault["loc"], *getattr(cause, "at", ()))
    line = next((lines[location[:end]] for end in range(len(location), 0, -1) if location[:end] in lines), None)
    name = shorten(".".join(str(part) for part in location))
    annotation, title = _find_annotation(kind, location)
    is_enum = isinstance(annotation, type) and issubclass(annotation, StrEnum)
    literals = annotation if is_enum else get_args(annotation) if get_origin(annotation) is Literal else ()
    choices = context.get("choices") or [str(name) for name in literals]
    section = f"a section [{'.'.join(map(str, location))}]" if _is_section(annotation) else ""
    valid = title or section or " or ".join(choices)
    removed = removal_reason(location)
    if removed and (fault["type"] == "extra_forbidden" or isinstance(fault["input"], dict)):
        code, message = "removed-setting", f"{name} was removed: {removed}"
    elif fault["type"] == "extra_forbidden":
        code = "unknown-setting"
        message = f"unknown setting '{name}'; {_suggest(location[-1], _known_settings(kind, location[:-1]))}"
    elif fault["type"] == "missing":
        code = "missing-setting"
        message = f"the setting '{name}' is missing; add {valid or 'it'}"
    elif fault["type"] == "value_error":
        code = getattr(cause, "code", "") or "invalid-value"
        message = f"{name}: {shorten(str(cause), 400)}" if name else shorten(str(cause), 400)
    else:
        code = "unknown-choice" if choices else "invalid-value"
        hint = _suggest(fault["input"], choices) if choices else f"expected {valid or 'another type of value'}"
        message = f"{name} is {_format_value(fault['input'])}{context.get('note', '')}; {hint}"
    place = f"{where}, line {line}" if line else where
    return ConfigFault(code, name, line, f"{place}: {message}")


def _suggest(value: Any, known: Iterable[str]) -> str:
    near = nearest_word(shorten(value), known) if isinstance(value, str) else ""
    return f"did you mean '{near}'?" if near else f"choose from {', '.join(known)}"


def _known_settings(kind: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    section = _find_annotation(kind, location)[0]
    return [field.alias or name for name, field in section.model_fields.items()] if _is_section(section) else []


def _find_annotation(kind: type[BaseModel], location: tuple[Any, ...]) -> tuple[Any, str]:
    """Return type and title of the setting at a location, or of the last known setting on the way there."""
    annotation: Any = kind
    title = ""
    for part in location:
        if _is_section(annotation):
            fields = {field.alias or name: field for name, field in annotation.model_fields.items()}
            if part not in fields:
                break
            annotation, title = _unwrap(fields[part].annotation), fields[part].title or ""
        elif get_origin(annotation) in (dict, tuple):
            annotation = _unwrap(get_args(annotation)[1 if get_origin(annotation) is dict else 0])
        else:
            break
    return annotation, title


def _unwrap(annotation: Any) -> Any:
    """Remove ``Annotated`` and the alternative ``None`` from a type."""
    while get_origin(annotation) in (Annotated, Union, UnionType):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    return annotation


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _format_value(value: Any) -> str:
    """Format a value as in the file, but short; of tables and lists only the type."""
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return "a very large number"
    if isinstance(value, int | float):  # bool is an int
        return str(value).lower()
    if isinstance(value, str):
        return f"'{shorten(value)}'"
    names = {dict: "a table", list: "a list", type(None): "nothing"}
    return names.get(type(value), "a date or a time")


# Settings of earlier versions that did not protect (docs/adr/0019 has the attacks), or that nobody needed. A file that
# names one is refused, with the reason and what to use instead. What earlier versions wrote for a setting that was not
# used still counts for the hash of a job, so that approvals, run folders and models remain valid.

_BLUR = "blur places, or add noise to similarities with sigma"
_BLIND = "a coordinator without encodings could still locate records by shuffled distances"
_ACTIVATIONS = "a primary could subtract noise on activations by asking again"
_GRADIENTS = "noise on gradients averages out over the steps"
_EXCHANGE = "exchanged rows stay whole, so that one known value singles a record out"
_AVERAGES = "groups of two sizes together show single records"
_ROWS = "equal rows have equal activations, whose noise could be subtracted"
_PROMISE = "the primary can compute explanations anyway, so this was a promise that nobody could check"
_APPROVED = "the owner sees it before approving a job"
_DEGREE = "records close together still show where a row is"
_DIRECT = "jobs without a coordinator compare every field, relative to similar records"
_DUMMIES = "random links stand out by their distance"

# By place in the file; * stands for the name of a secondary.
REMOVED_SETTINGS: Mapping[str, str] = {
    "protection.coordinator": f"{_BLIND}; remove it, and {_BLUR}",
    "protection.activations": f"{_ACTIVATIONS}; remove it, and add noise to features, or seal labels",
    "protection.gradients": f"{_GRADIENTS}; seal labels with gradients = 'none'",
    "protection.features.exchange_of": f"{_EXCHANGE}; use features = {{ noise = N }}",
    "protection.features.average_of": f"{_AVERAGES}; use features = {{ noise = N }}",
    "secondaries.*.hide_rows": f"{_ROWS}; remove it, and blur places",
    "secondaries.*.dummies": f"{_DUMMIES}; remove it, and blur places",
    "secondaries.*.min_degree": f"{_DEGREE}; remove it, and blur places",
    "secondaries.*.similarities": f"{_DIRECT}; remove it, or link directly by tokens",
    "secondaries.*.relative": f"{_DIRECT}; remove it, or link directly by tokens",
    "secondaries.*.aligned_with": "parties that share a key can join their tables; remove it, or link the secondary",
    "secondaries.*.explanations": f"{_PROMISE}; remove it",
    "training.start_from": "remove it; train the job from new weights",
    "training.joining": "remove it; train the job from new weights",
    "policy.min_k": f"{_APPROVED}; remove it",
    "policy.hardening": f"{_APPROVED}; remove it, and limit what an attack gains with audit",
    "policy.methods": f"{_APPROVED}; remove it",
    "policy.wire": f"{_APPROVED}; remove it",
    "policy.max_epochs": f"{_APPROVED}; remove it, and limit the epochs of a primary with max_total_epochs",
    "policy.max_repeated_epochs": "3 epochs may be repeated; remove it",
    "policy.max_links": "the audit log states the largest number; remove it, and limit new records with max_new_links",
    "policy.primary": "one list names all other parties; use parties",
    "policy.coordinator": "one list names all other parties; use parties",
    "policy.secondaries": "one list names all other parties; use parties",
    "telemetry.otlp": "a collector can scrape Prometheus metrics and read the log; remove it, and use metrics and logs",
    "data.password_file": "PostgreSQL has its own; remove it, and use PGPASSWORD or ~/.pgpass",
    "policy.explanations": f"{_PROMISE}; remove it",
    "policy.blind_coordinator": f"{_BLIND}; remove it, and require max_epsilon_per_km or min_sigma",
    "policy.activations": f"{_ACTIVATIONS}; remove it, and require min_feature_noise or sealed_labels",
    "policy.gradients": f"{_GRADIENTS}; remove it, and require sealed_labels",
    "policy.min_exchange_of": f"{_EXCHANGE}; remove it, and require min_feature_noise",
    "policy.min_average_of": f"{_AVERAGES}; remove it, and require min_feature_noise",
    "policy.hide_rows": f"{_ROWS}; remove it, and require max_epsilon_per_km",
    "policy.min_degree": f"{_DEGREE}; remove it, and require max_epsilon_per_km",
    "policy.min_dummies": f"{_DUMMIES}; remove it, and require max_epsilon_per_km",
}
# What earlier versions wrote for a setting that was not used, in the section of protection and of a linked secondary.
_UNUSED_PROTECTION: Mapping[str, Any] = {"activations": None}
_UNUSED_TERMS: Mapping[str, Any] = {"dummies": 0.0, "hide_rows": False, "min_degree": 1}


def removal_reason(location: Sequence[Any]) -> str:
    """Return why a setting was removed and what to use instead; empty for any other name.

    >>> removal_reason(("policy", "blind_coordinator")).rpartition("; ")[2]
    'remove it, and require max_epsilon_per_km or min_sigma'
    """
    names = [str(part) for part in location]
    if names[:1] == ["secondaries"] and len(names) > 1:
        names[1] = "*"
    return REMOVED_SETTINGS.get(".".join(names), "")


def with_unused(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a job as earlier versions wrote them, which hashed them so."""
    return _map_sections(job, lambda section, unused: {**unused, **section})


def without_unused(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a job of an earlier version without the removed ones that it did not use."""
    return _map_sections(job, lambda section, unused: dict(_used(section, unused)))


def _used(section: Mapping[str, Any], unused: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in section.items() if name not in unused or value != unused[name])


def _map_sections(
    job: Mapping[str, Any], change: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Change the sections that had removed settings; anything that is not a section stays as it is."""
    found, secondaries = dict(job), job.get("secondaries")
    if isinstance(found.get("protection"), Mapping):
        found["protection"] = change(found["protection"], _UNUSED_PROTECTION)
    if isinstance(secondaries, Mapping):
        found["secondaries"] = {
            name: change(terms, _UNUSED_TERMS) if isinstance(terms, Mapping) else terms
            for name, terms in secondaries.items()
        }
    return found
