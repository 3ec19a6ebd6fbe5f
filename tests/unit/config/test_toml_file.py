"""Files that are no settings are refused at once, and faults of the others name their lines."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fedsim.config.job import Job, read_job
from fedsim.config.toml_file import ConfigFault, ConfigFileError
from fedsim.errors import FedSimError, FileError

TEXT = (Path(__file__).parents[2] / "golden" / "job.toml").read_text(encoding="utf-8")


def job_of(folder: Path, text: str) -> Job:
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8", newline="")
    return read_job(path)


def first_fault(folder: Path, text: str) -> ConfigFault:
    with pytest.raises(ConfigFileError) as caught:
        job_of(folder, text)
    return caught.value.faults[0]


def test_a_misspelt_section_is_reported_once_and_not_as_missing_too(tmp_path):
    for name, count in (("tasks", 1), ("wish", 2)):
        with pytest.raises(ConfigFileError) as caught:
            job_of(tmp_path, TEXT.replace("[task]", f"[{name}]"))
        assert len(caught.value.faults) == count


def test_lines_are_counted_across_multi_line_texts_and_lists(tmp_path):
    spread = TEXT.replace('"flats"', '"""\\\n  flats\\\n  """ # """').replace("seed = 7", "seed = 7 # [")
    assert first_fault(tmp_path, spread.replace("epochs = 40", "epochs = -1")).line == 22
    listed = spread.replace("seed = 7", "seed = [\n '[task]', # ]\n '=' ]")
    assert first_fault(tmp_path, listed).line == 5


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"x = 1\n" * 50_000, "file-too-large"),
        (b'name = "\xff"', "not-utf-8"),
        (b"a = " + b"[" * 100_000, "invalid-toml"),
        (b".".join([b"a"] * 100_000) + b" = 1", "invalid-toml"),
        (b"f" * 200_000, "invalid-toml"),
        (b'"x".' * 60_000, "invalid-toml"),
        (b"a = 1\n[b]\nc =", "invalid-toml"),
        (b"", "missing-setting"),
    ],
)
def test_hostile_files_are_refused_at_once(tmp_path, content, code):
    path = tmp_path / "job.toml"
    path.write_bytes(content)
    started = time.thread_time()  # other processes do not count
    with pytest.raises(FedSimError) as caught:
        read_job(path)
    assert caught.value.code == code
    assert time.thread_time() - started < 2


def test_what_is_no_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.toml", tmp_path / ("x" * 300), Path("/dev/zero"), Path("a\0b")):
        with pytest.raises(FileError):
            read_job(path)
