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


def command_pages() -> dict[str, str]:
    """Return an overview, with commands under the same headings as the help, and a page per heading and per group."""
    visible = {name: command for name, command in typer.main.get_command(app).commands.items() if not command.hidden}
    overview, pages = [LEAD], dict[str, list[str]]()
    for panel in dict.fromkeys(str(command.rich_help_panel) for command in visible.values()):
        overview.append(f"## {panel}\n\n| command | what it does |\n|---|---|")
        for name, command in visible.items():
            if command.rich_help_panel == panel:
                below = getattr(command, "commands", {})
                title, page = (f"`fedsim {name}`", name) if below else (panel, panel.lower().replace(" ", "-"))
                every = {f"fedsim {name}": command} if not below or command.params else {}
                every |= {f"fedsim {name} {own}": one for own, one in below.items()}
                text = pages.setdefault(f"commands/{page}", [f"# {title}\n"])
                for called, one in every.items():
                    text += _command(one, called)
                    summary = escaped(one.help.partition("\n\n")[0])
                    overview.append(f"| [`{called}`](commands/{page}.md#{called.replace(' ', '-')}) | {summary} |")
        overview.append("")
    return {"commands": "\n".join(overview)} | {name: "\n".join(text) for name, text in pages.items()}


def _command(command: Any, called: str) -> Iterator[str]:
    yield f"## {called}\n"
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
