"""List runs, write reports and show audit logs (``fedsim runs``, ``fedsim report`` and ``fedsim log``)."""

import json
from dataclasses import asdict
from pathlib import Path

import typer

from fedsim.cli.options import OutputMode, print_json
from fedsim.cli.output import print_lines, print_table
from fedsim.config.party_file import read_party_file
from fedsim.errors import FileError
from fedsim.report.board import BoardServer
from fedsim.report.formatting import format_bytes, format_duration, format_number
from fedsim.report.run_data import DAMAGED, RunSummary, differing_settings, find_run, list_runs
from fedsim.report.run_report import CARD_JSON_FILE, CARD_MARKDOWN_FILE, write_report
from fedsim.runs.run_folder import AuditEntry, read_audit_log

MAX_VALUE_LENGTH = 60
COLUMNS = ("folder", "method", "test", "epochs", "time", "bytes", "state")


def run_runs(folder: Path, mode: OutputMode) -> None:
    """Print the runs under a folder and the settings in which they differ."""
    runs = list_runs(folder)
    differing = differing_settings(runs)

    def print_text() -> None:
        if not runs:
            home = "`fedsim train` and `fedsim party` write them to the folder of the party"
            typer.echo(f"no runs under {folder}; {home}")
            return
        print_table(COLUMNS, map(_run_cells, runs))
        for run in runs:
            print_lines(f"{run.folder}: {text}" for text in (run.worth, run.note) if text)
        for key, values in differing.items():
            texts = [json.dumps(value, ensure_ascii=False) for value in values]
            short = (text if len(text) <= MAX_VALUE_LENGTH else f"{text[: MAX_VALUE_LENGTH - 1]}…" for text in texts)
            typer.echo(f"differs: {key} = {', '.join(short)}")

    mode.show({"runs": [asdict(run) for run in runs], "differing": differing}, print_text)


def _run_cells(run: RunSummary) -> tuple[str, ...]:
    if run.state == DAMAGED:
        return run.folder, "", "", "", "", "", run.state
    score = "" if run.metric is None or run.value is None else f"{run.metric} {format_number(run.value)}"
    cost = format_duration(run.seconds), format_bytes(run.bytes)
    return run.folder, run.method or "", score, str(run.epochs), *cost, run.state


def serve_live_page(folder: Path, port: int, mode: OutputMode) -> None:
    """Serve the page that follows running parties until the process is stopped."""
    with BoardServer(folder, port) as server:
        if mode.json:
            print_json({"address": server.address})
        else:
            typer.echo(server.address if mode.quiet else f"Open {server.address}\nPress Ctrl-C to stop.")
        server.serve_forever()


def run_report(run: Path, map_party: Path | None, identifiers_party: Path | None, mode: OutputMode) -> None:
    """Write the report and the model card of a run again."""
    parties = [None if path is None else read_party_file(path) for path in (map_party, identifiers_party)]
    page = write_report(find_run(run), *parties)
    card = json.loads((page.parent / CARD_JSON_FILE).read_text(encoding="utf-8"))
    text = f"Wrote {page}, with {CARD_MARKDOWN_FILE} and {CARD_JSON_FILE} beside it"
    mode.show({"report": str(page), "card": card}, lambda: typer.echo(text))


def run_log(path: Path, mode: OutputMode) -> None:
    """Print an audit log up to the first line that is not as it was written, which is an error."""
    entries: list[AuditEntry] = []
    fault: FileError | None = None
    try:
        for entry in read_audit_log(path):
            entries.append(entry)
    except FileError as error:
        fault = error
    last = entries[-1].hash if entries else None
    value = {"entries": [asdict(entry) for entry in entries], "last": last, "fault": str(fault) if fault else None}
    rows = [(e.time, e.party, e.what, ", ".join(f"{name} {fact}" for name, fact in e.facts.items())) for e in entries]
    mode.show(value, lambda: print_table(("time", "party", "event", "facts"), rows) if rows else None)
    if fault:
        raise fault
    if not mode.silent:
        typer.echo(f"{len(entries)} entries, none changed; last hash {last or 'none'}")
