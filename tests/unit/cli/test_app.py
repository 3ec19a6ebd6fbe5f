"""How the command behaves among others: exit codes, pipes, colours, completion, and words for people or programs."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import fedsim.cli
from fedsim.cli import EXIT_CODE_MEANINGS, ExitCode, main
from fedsim.cli.app import app
from fedsim.errors import AwayError, FedSimError
from fedsim.registry import METRICS
from fedsim.types import DEFAULT_K
from job_fixtures import fill

PLAIN = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "PY_COLORS", "NO_COLOR")}
FEDSIM = [sys.executable, "-m", "fedsim"]
# What they print is what they are for.
ANSWERS = {"bench"}
# Their tables are pages, or those of a script.
FOR_PEOPLE = {"bench"}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FEDSIM, *words], capture_output=True, text=True, timeout=300, env=PLAIN, check=False)


@pytest.fixture
def one_command(monkeypatch: pytest.MonkeyPatch):
    """``fedsim`` with one command, which raises what it is given."""

    def given(error: BaseException) -> None:
        small = typer.Typer(pretty_exceptions_enable=False)

        @small.command()
        def fall() -> None:
            raise error

        monkeypatch.setattr("fedsim.cli.app.app", small)

    return given


ENDS = [
    (AwayError("rentals is away; start it"), 3, "error: rentals is away; start it\n"),
    (FedSimError("k=0 is too small; choose 1"), 2, "error: k=0 is too small; choose 1\n"),
    (KeyboardInterrupt(), 130, ""),
]


@pytest.mark.parametrize(("error", "code", "output"), ENDS, ids=["away", "invalid", "stopped"])
def test_an_error_has_its_exit_code_and_one_line(one_command, capsys, error, code, output):
    one_command(error)
    with pytest.raises(SystemExit) as left:
        main([])
    assert (left.value.code, capsys.readouterr().err) == (code, output)


def test_a_defect_names_its_place_and_shows_no_value(one_command, capsys):
    one_command(KeyError("Zaphod"))
    with pytest.raises(SystemExit) as left:
        main([])
    output = capsys.readouterr().err
    assert left.value.code == ExitCode.DEFECT
    assert "KeyError in test_app.py, line " in output
    assert "Zaphod" not in output
    assert output.count("\n") == 1


def test_debug_shows_where_an_error_came_from(one_command, capsys):
    one_command(FedSimError("no"))
    with pytest.raises(SystemExit):
        main(["--debug"])
    output = capsys.readouterr().err
    assert "Traceback" in output
    assert output.endswith("error: no\n")


@pytest.mark.parametrize(
    "words", [["link", "--k", "many"], ["nonsense"], ["encode"], ["privacy", "log", "absent.jsonl"]]
)
def test_invalid_input_exits_with_two_and_without_traceback(words):
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr
    assert "Traceback" not in done.stderr


LONG = {
    "train": ["train", "job.toml", "notary.toml", "city.toml", "rentals.toml", "--again"],
    "party": ["party", "job.toml", "notary.toml"],
    "compare": ["compare", "job.toml", "city.toml", "rentals.toml", "--out", "my results"],
    "tune": ["tune", "job.toml", "city.toml", "rentals.toml"],
}


@pytest.mark.parametrize("words", LONG.values(), ids=LONG)
def test_ctrl_c_says_in_one_line_how_to_continue(tmp_path, words):
    fill(tmp_path)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    pipes["preexec_fn"] = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a background job ignores it
    with subprocess.Popen([*FEDSIM, *words], cwd=tmp_path, env=PLAIN, **pipes) as running:
        output = running.stdout.readline()  # it has begun
        running.send_signal(signal.SIGINT)
        output += running.stdout.read()
    assert running.returncode == ExitCode.STOPPED
    assert "Traceback" not in output
    command = shlex.join(word for word in words if word != "--again")
    assert [line for line in output.splitlines() if "continue" in line] == [f"stopped; to continue: fedsim {command}"]


def test_there_are_at_most_twenty_commands_beside_those_for_research():
    assert sum(not command.hidden for command in typer.main.get_command(app).commands.values()) <= 20
    assert "fedsim lab" in CliRunner().invoke(app, ["--help"]).output


@pytest.mark.parametrize(("words", "limits"), [(["link", "--k", "abc"], ""), (["compare", "--seeds", "x"], "from 1")])
def test_a_word_in_the_place_of_a_number_is_named_with_the_numbers_allowed(words, limits):
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == ExitCode.INVALID_INPUT
    assert f"'{words[-1]}' is not a " in refused.stderr
    assert limits in refused.stderr


def test_help_is_readable_at_80_columns():
    names = [[name] for name in commands()] + [["privacy", "table"], ["lab", "sweep"], []]
    for words in names:
        shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"})
        assert shown.exit_code == 0
        assert max(map(len, shown.output.splitlines())) <= 80, words
        assert "<bool>" not in shown.output


@pytest.mark.parametrize("words", [[], ["privacy"], ["lab"]])
def test_summaries_of_commands_are_not_cut(words):
    shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"}).output
    assert "..." not in shown.replace("COMMAND [ARGS]...", "")


def test_help_names_options_and_arguments_that_exist():
    for name in ("tau", "sigma", "epsilon", "table"):
        assert "--quiet" not in CliRunner().invoke(app, ["privacy", name, "--help"]).output
    assert "[OPTIONS] [KEY]\n" in CliRunner().invoke(app, ["explain", "--help"]).output
    assert "[OPTIONS] [NAME] [CASE]...\n" in CliRunner().invoke(app, ["lab", "bench", "--help"]).output


def test_help_names_the_default_k_and_the_metrics():
    shown = CliRunner().invoke(app, ["link", "--help"], env={"COLUMNS": "80"}).output
    assert f"Default: {DEFAULT_K}." in shown
    assert all(name.partition("-")[0] in shown for name in METRICS.names())


def test_every_exit_code_has_a_meaning():
    assert set(EXIT_CODE_MEANINGS) == set(ExitCode)


def test_the_module_is_the_command():
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"fedsim {fedsim.__version__}\n")


def test_commands_that_only_read_files_do_not_wait_for_libraries_that_train():
    heavy = "{'torch', 'numba', 'sklearn', 'pandas', 'fastapi'}"
    code = f"import sys; from fedsim.cli import results, agreement, init; print(*({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == []


def test_a_reader_that_goes_away_is_no_crash():
    with subprocess.Popen([*FEDSIM, "explain"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=PLAIN) as talker:
        talker.stdout.close()
        assert talker.stderr.read() == b""


COMPLETED = """
eval "$(_FEDSIM_COMPLETE=source_bash fedsim)"
words=(fedsim $1); COMP_WORDS=("${words[@]}"); COMP_CWORD=$(( ${#words[@]} - 1 ))
_fedsim_completion fedsim
echo "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash is installed: completion is not tested")
@pytest.mark.parametrize(("typed", "offered"), [("li", "link"), ("link --met", "--metric"), ("privacy t", "table")])
def test_bash_completes_commands_and_options(typed, offered):
    env = PLAIN | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = ["bash", "-c", COMPLETED, "bash", typed]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=env, check=False)
    assert offered in done.stdout.split(), done.stderr


def commands() -> dict[str, set[str]]:
    """Every command and its options."""
    found = {}
    for name, command in typer.main.get_command(app).commands.items():
        if not hasattr(command, "commands"):
            found[name] = {option for parameter in command.params for option in parameter.opts}
    return found


def test_every_command_can_be_quiet_unless_its_answer_is_all_it_does():
    loud = {name for name, options in commands().items() if "--quiet" not in options}
    assert loud <= ANSWERS


def test_every_command_has_words_for_programs_unless_it_makes_pages():
    speechless = {name for name, options in commands().items() if "--json" not in options}
    assert speechless <= FOR_PEOPLE


ASKING = [
    (["init", "--primary", "flats.csv", "--secondary", "rentals.csv", "--out", "new"], b"Columns to link by"),
    (["approve", "job.toml", "city.toml", "--json"], b"Approve?"),
]


@pytest.mark.parametrize(("words", "question"), ASKING, ids=["init", "approve"])
def test_ctrl_c_at_a_question_ends_with_130_and_leaves_nothing(tmp_path, words, question):
    fill(tmp_path)
    shutil.rmtree(tmp_path / "city-run")
    before = sorted(tmp_path.rglob("*"))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    as_in_a_terminal = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a background job ignores it
    pipes["preexec_fn"] = as_in_a_terminal
    with subprocess.Popen([*FEDSIM, *words], cwd=tmp_path, env=PLAIN, bufsize=0, **pipes) as asking:
        output = b""
        while question not in output:
            output += asking.stderr.read(1) or pytest.fail(output.decode())
        asking.send_signal(signal.SIGINT)
        try:
            ended = asking.wait(timeout=300)  # with its input still open: nobody presses Enter
        finally:
            asking.kill()
        rest = asking.communicate()
    assert ended == ExitCode.STOPPED
    assert b"Traceback" not in rest[1]
    assert (rest[0].count(b"{"), sorted(tmp_path.rglob("*"))) == (0, before)


def output(*words: str) -> dict[str, object]:
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_programs_get_certificates_with_their_days(tmp_path):
    made = output("certs", "--out", str(tmp_path), "--primary", "city", "--days", "30", "--json")
    assert made == output("certs", "--show", str(tmp_path), "--json")
    whose = {Path(one["file"]).name: (one["of"], one["days_left"]) for one in made["certificates"]}
    assert whose["primary-city.pem"] == ("primary 'city'", 29)


def test_programs_get_the_place_of_a_key(tmp_path):
    made = output("certs", "key", "--out", str(tmp_path / "linkage.key"), "--json")
    assert Path(made["file"]).is_file()


def test_programs_get_what_noise_is_worth():
    table = output("privacy", "table", "--spread", "21178.86", "--taus", "0.01,0.001", "--json")
    assert [row["tau"] for row in table["rows"]] == [0.01, 0.001]
    assert table["rows"][0]["sigma"] < table["rows"][1]["sigma"]


@pytest.mark.parametrize("words", [["runs", "."], ["explain", "tau"], ["lab", "datasets"]])
def test_a_quiet_answer_is_its_exit_code(words):
    done = CliRunner().invoke(app, [*words, "--quiet"])
    assert (done.exit_code, done.output) == (0, "")


def test_quiet_lists_nothing(tmp_path):
    for words in (["--primary", "city", "--out", str(tmp_path)], ["--show", str(tmp_path)]):
        assert CliRunner().invoke(app, ["certs", *words, "--quiet"]).output == ""


def test_a_quiet_approval_has_to_say_yes(tmp_path):
    fill(tmp_path)
    words = ["approve", str(tmp_path / "job.toml"), str(tmp_path / "city.toml"), "--quiet"]
    assert isinstance(CliRunner().invoke(app, words).exception, FedSimError)
    done = CliRunner().invoke(app, [*words, "--yes"])
    assert (done.exit_code, done.output) == (0, "")
