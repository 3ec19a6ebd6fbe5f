"""Generate the command reference from the command-line definitions, like ``fedsim --help``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from fedsim.cli.app import app
from prose import escaped, paragraphs

LEAD = """# Commands

`fedsim COMMAND --help` prints the same text. Common options: `--debug` prints a traceback for errors (it may contain
values of your tables), `--quiet` prints errors only, `--json` prints one JSON object on standard output while
progress and questions go to standard error. See also [errors and exit codes](errors.md).
"""


def commands_page() -> str:
    """Return the page, with commands under the same headings as the help."""
    everything = typer.main.get_command(app).commands
    panels = dict.fromkeys(str(command.rich_help_panel) for command in everything.values())
    return "\n".join([LEAD, *(line for panel in panels for line in _panel(panel, everything))])


def _panel(panel: str, everything: dict[str, Any]) -> Iterator[str]:
    yield f"## {panel}\n"
    for name, command in everything.items():
        if command.rich_help_panel == panel:
            yield from _group(command, name) if hasattr(command, "commands") else _command(command, f"fedsim {name}")


def _group(group: Any, name: str) -> Iterator[str]:
    for below, command in group.commands.items():
        yield from _command(command, f"fedsim {name} {below}")


def _command(command: Any, called: str) -> Iterator[str]:
    yield f"### {called}\n"
    yield paragraphs(command.help)
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    words = " ".join([called, *(_argument(one) for one in arguments), "[OPTIONS]"])
    yield f"```text\n{words}\n```\n"
    yield "| parameter | meaning |\n|---|---|"
    for one in arguments:
        yield f"| `{_argument(one)}` | {_meaning(one)} |"
    for one in options:
        yield f"| {_option(one)} | {_meaning(one)} |"
    yield ""


def _argument(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _option(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    return names if option.is_flag else f"{names} {option.metavar or option.name.upper()}"


def _meaning(parameter: Any) -> str:
    notes = []
    if parameter.required:
        notes.append("required")
    elif not getattr(parameter, "is_flag", False) and parameter.default not in (None, "", [], ()):
        notes.append(f"default `{parameter.default}`")
    if getattr(parameter, "envvar", None):
        notes.append(f"environment variable `{parameter.envvar}`")
    meant = escaped(getattr(parameter, "help", None) or "")
    return f"{meant} ({', '.join(notes)})" if notes else meant
