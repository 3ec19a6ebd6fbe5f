"""A newcomer who reads a page and does what it says: runs its snippets, types its commands, writes its files."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from fedsim.cli import main
from fedsim_lab.faults.processes import start_command

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n?((?:(?!\$ ).*\n?)*)", re.MULTILINE)
PROMISE = re.compile(r"^print\(.*\)(?:  |\n)# (.+)$", re.MULTILINE)
PROCESSES = {"party", "predict", "serve"}  # each in a process of its own
NEEDS = re.compile(r"\bfiles\s+of\s+\[[^\]]+\]\(([^)#]+)#([\w-]+)\)")
PLAIN = {"cp", "mkdir", "head", "cat", "ls", "python", "eval"}
LONGEST = 600  # seconds of a command, which measure nothing
PATIENT = ["--retry", str(LONGEST), "--retry-delay", "1", "--retry-connrefused", "--fail"]


@dataclass(frozen=True)
class Block:
    """A fenced part of a page."""

    language: str
    title: str
    text: str


def blocks(page: Path, heading: str = "") -> list[Block]:
    """All of a page or of one of its sections, in their order."""
    text = page.read_text(encoding="utf-8")
    if heading:
        sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
        (text,) = [section for section in sections if anchor(section.splitlines()[0]) == heading]
    return [Block(*found) for found in BLOCK.findall(text)]


def anchor(heading: str) -> str:
    """What a link names a heading by."""
    return re.sub(r"[^\w-]", "", heading.lstrip("# ").lower().replace(" ", "-"))


class Newcomer:
    """Works in the current folder; ``ports`` stand for those on the page, which somebody else may use."""

    def __init__(self, ports: dict[str, str]) -> None:
        self._ports, self._names = ports, dict[str, object]()
        self._started: list[ForkServerProcess] = []

    def follow(self, page: Path) -> None:
        """Do all that the page says, after those sections of other pages whose files it says it needs."""
        for there, heading in NEEDS.findall(page.read_text(encoding="utf-8")):
            self._do(blocks(page.parent / there, heading), there)
        self._do(blocks(page), page.name)

    def _do(self, blocks: list[Block], name: str) -> None:
        """Write the files, run the snippets and type the commands, and see what the page promises."""
        for block in blocks:
            if block.title:
                file = Path(block.title)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(self._here(block.text), encoding="utf-8")
            elif block.language == "python":
                output = self._run_snippet(block.text, name)
                assert output.splitlines() == PROMISE.findall(block.text)
            elif block.language == "console":
                for command, shown in COMMAND.findall(block.text):
                    self._compare(command, shown, self._type(self._here(command.replace("\\\n", " "))))

    def stop(self) -> None:
        """End what still runs in the background."""
        for process in self._started:
            process.terminate()
        for process in self._started:
            process.join(LONGEST)

    def _here(self, text: str) -> str:
        return re.sub("|".join(self._ports), lambda port: self._ports[port[0]], text)

    def _compare(self, command: str, shown: str, output: str) -> None:
        for line in filter(None, shown.splitlines()):
            wanted = re.escape(line.strip()).replace(r"\.\.\.", ".*")
            assert re.search(wanted, output), f"{command}: the page promises {line!r}, but it printed\n{output}"

    def _run_snippet(self, code: str, name: str) -> str:
        with redirect_stdout(StringIO()) as output:
            exec(compile(code, name, "exec"), self._names)  # noqa: S102
        return output.getvalue()

    def _type(self, line: str) -> str:
        first, *words = shlex.split(line, comments=True)
        if first in PLAIN:
            return self._run(["bash", "-c", line])
        known = {"cd": self._go, "make": self._find_target, "fedsim": self._fedsim, "curl": self._ask}
        known["source"] = lambda _: ""  # the environment of the tests is active
        assert first in known, f"{first} is not known here; teach it to tests/docs_runner.py"
        return known[first](words)

    def _go(self, words: list[str]) -> str:
        os.chdir(words[0])
        return ""

    def _find_target(self, words: list[str]) -> str:
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"make {words[0]}"
        return ""

    def _ask(self, words: list[str]) -> str:
        words = [re.sub(r"\$\(cat (.+?)\)", lambda file: Path(file[1]).read_text().strip(), word) for word in words]
        return self._run(["curl", *words, *PATIENT])

    def _fedsim(self, words: list[str]) -> str:
        if words[-1] == "&":
            return self._start(words[:-1])
        if words[0] in PROCESSES:
            log = Path("command.log").absolute()
            process = start_command(words, log)
            process.join(LONGEST)
            process.kill()  # unless it has ended
            process.join()
            assert process.exitcode == 0, f"fedsim {' '.join(words)} ended with {process.exitcode}:\n{log.read_text()}"
            return log.read_text()
        output = StringIO()
        with redirect_stdout(output), redirect_stderr(output), pytest.raises(SystemExit) as left:
            main(words)
        assert left.value.code in (0, None), (
            f"fedsim {' '.join(words)} ended with {left.value.code}:\n{output.getvalue()}"
        )
        if words[0] == "init":
            for job in Path().glob("**/job.toml"):  # on ports that are free here, and quicker to train
                text = self._here(job.read_text(encoding="utf-8")).replace("# members = 8", "members = 1")
                job.write_text(re.sub(r"^epochs = \d{2,}", "epochs = 3", text, flags=re.MULTILINE), encoding="utf-8")
        return output.getvalue()

    def _start(self, words: list[str]) -> str:
        log = Path("background.log").absolute()
        self._started.append(start_command(words, log))
        deadline = time.monotonic() + LONGEST
        while words[0] == "relay" and not (log.exists() and "Relaying" in log.read_text()):
            assert time.monotonic() < deadline, "the relay did not start"
            time.sleep(0.05)
        return ""

    def _run(self, words: list[str]) -> str:
        path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=LONGEST, env=os.environ | path, check=False
        )
        assert done.returncode == 0, f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr}"
        return done.stdout
