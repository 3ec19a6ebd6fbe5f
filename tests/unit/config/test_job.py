"""The job file: what it means, what its hash sees, and how every mistake in it is told."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest

from fedsim.config.job import SIMULATION_ONLY_METHODS, Job, MethodWord, TrainingSettings, read_job
from fedsim.errors import FedSimError, FileError, SettingError
from fedsim.protocol.messages import Party, Role
from fedsim.storage.digest import first_difference

TEXT = (Path(__file__).parents[2] / "golden" / "job.toml").read_text(encoding="utf-8")


def job_of(folder: Path, text: str) -> Job:
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8", newline="")
    return read_job(path)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(FedSimError) as caught:
        job_of(folder, text)
    return str(caught.value).replace(f"{folder}/", "")


def test_parties_stand_in_one_order_and_only_two_are_dialled(tmp_path):
    job = job_of(tmp_path, TEXT)
    assert [str(party) for party in job.parties] == [
        "coordinator 'notary'",
        "primary 'city'",
        "secondary 'rentals'",
        "secondary 'schools'",
    ]
    assert job.address_of(Party(Role.PRIMARY, "city")) == "127.0.0.1:50052"
    with pytest.raises(SettingError, match="only coordinator and primary are dialled"):
        job.address_of(Party(Role.SECONDARY, "rentals"))


def test_the_layout_of_the_file_does_not_change_the_hash(tmp_path):
    head, schools, rentals = TEXT.partition("[secondaries.rentals]")[0], "[secondaries.schools]", ""
    start = head.index(schools)
    rentals = TEXT[len(head) :]
    turned = head[:start] + rentals + "\n# a comment\n" + head[start:]
    spelt = turned.replace("seed = 7", "seed=0x7").replace("tau = 0.01", "metric = 'hamming'\ntau = 1e-2")
    expected = job_of(tmp_path, TEXT)
    assert job_of(tmp_path, spelt).hash == expected.hash
    assert list(job_of(tmp_path, spelt).secondaries) == list(expected.secondaries)
    assert job_of(tmp_path, "\ufeff" + TEXT.replace("\n", "\r\n")).hash == expected.hash


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("seed = 7", "seed = 8"),
        ("50051", "50053"),
        ("epochs = 40", "epochs = 41"),
        ("tau = 0.01", "tau = 0.011"),
        ("threshold = 365", "threshold = 364"),
        ('kind = "balance"', 'kind = "shuffle"'),
        ("wait_seconds = 60", ""),
    ],
)
def test_any_changed_setting_changes_the_hash_and_can_be_named(tmp_path, old, new):
    before, after = job_of(tmp_path, TEXT), job_of(tmp_path, TEXT.replace(old, new))
    assert before.hash != after.hash
    assert first_difference(before.described(), after.described()).startswith("job.")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("epochs = 40", "epoch = 40", "job.toml, line 20: unknown setting 'training.epoch'; did you mean 'epochs'?"),
        ("epochs = 40", "epochs = 0", "line 20: training.epochs is 0; give a whole number from 1 to 100,000"),
        ("epochs = 40", "epochs = 4.5", "line 20: training.epochs is 4.5; give a whole number"),
        ("epochs = 40", "epochs = true", "line 20: training.epochs is true; give a whole number"),
        ("epochs = 40", "epochs = 4O", "line 20: this is no TOML"),
        ("epochs = 40", "epochs = 0x" + "f" * 99, "line 20: training.epochs is a very large number"),
        (
            "learning_rate = 0.002",
            "learning_rate = nan",
            "line 21: training.learning_rate is nan; give a number above 0",
        ),
        ('"group"', '"groups"', "line 15: task.split is 'groups'; did you mean 'group'?"),
        ('name = "flats"', 'name = "Flats/.."', "line 2: name is 'Flats/..'; give up to 40 small letters"),
        ("127.0.0.1:50051", "127.0.0.1", "line 7: coordinator.address: '127.0.0.1' is no address"),
        ("127.0.0.1:50051", "127.0.0.1:0", "line 7: coordinator.address: '127.0.0.1:0' has port 0"),
        ("127.0.0.1:50051", "127.0.0.1:70000", "is no address; give host and port"),
        ("50052", "50051", "line 9: primary: coordinator and primary have the same address"),
        ('"city"', '"notary"', "two parties are called 'notary'; give every party a name of its own"),
        ("schools", "City", "line 26: secondaries.City: a secondary's name is up to 40 small letters"),
        ("sigma = 0.4", "sigma = 0.4\ntau = 0.1", "line 29: secondaries.schools.sigma: both tau and sigma are given"),
        ("sigma = 0.4", "tau = 0.4", "line 29: secondaries.schools.tau: tau bounds attacks on hamming distances only"),
        ("sigma = 0.4", "sigma = 0", "line 29: secondaries.schools.sigma is 0; give a number above 0"),
        ("sigma = 0.4", "sgima = 0.4", "unknown setting 'secondaries.schools.sgima'; did you mean 'sigma'?"),
        ("k = 50", "", "line 38: the setting 'secondaries.rentals.k' is missing; give a whole number from 1"),
        ("low = 39,", "low = 49,", "line 42: secondaries.rentals.schema: high=42 is not a number above 49"),
        ("low = 39", "lwo = 39", "field 1, encoding (numeric): unknown setting 'lwo'; did you mean 'low'?"),
        ("[task]", "[tasks]", "line 13: unknown setting 'tasks'; did you mean 'task'?"),
    ],
)
def test_a_mistake_is_told_with_line_setting_value_and_way_out(tmp_path, old, new, told):
    assert old in TEXT
    assert told in refusal(tmp_path, TEXT.replace(old, new))


def test_a_misspelt_setting_is_told_once_and_not_as_missing_too(tmp_path):
    assert refusal(tmp_path, TEXT.replace("[task]", "[tasks]")).endswith("did you mean 'task'?")
    told = refusal(tmp_path, TEXT.replace("[task]", "[wish]"))
    assert "(1 more fault in this file)" in told


def test_lines_are_counted_past_texts_and_lists_that_go_over_several(tmp_path):
    spread = TEXT.replace('"flats"', '"""\\\n  flats\\\n  """ # """').replace("seed = 7", "seed = 7 # [")
    assert "line 22: training.epochs is -1" in refusal(tmp_path, spread.replace("epochs = 40", "epochs = -1"))
    listed = spread.replace("seed = 7", "seed = [\n '[task]', # ]\n '=' ]")
    assert "line 5: seed is a list" in refusal(tmp_path, listed)


@pytest.mark.parametrize("word", SIMULATION_ONLY_METHODS)
def test_methods_without_real_parties_are_refused_with_the_reason(tmp_path, word):
    told = refusal(tmp_path, TEXT.replace('"fedsim"', f'"{word}"'))
    assert f"line 19: training.method: the method '{word}' is none for a job: {SIMULATION_ONLY_METHODS[word]}" in told


def test_a_job_without_secondaries_is_none(tmp_path):
    alone = TEXT[: TEXT.index("[secondaries")]
    assert "the setting 'secondaries' is missing" in refusal(tmp_path, alone)
    assert "secondaries is a table; give a section [secondaries.NAME] for each" in refusal(
        tmp_path, alone + "[secondaries]\n"
    )


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"x = 1\n" * 50_000, "larger than 256 kB"),
        (b'name = "\xff"', "line 1: the text is not UTF-8"),
        (b"a = " + b"[" * 100_000, "no TOML"),
        (b".".join([b"a"] * 100_000) + b" = 1", "line 1: 32 words joined by dots"),
        (b"f" * 200_000, "line 1: this is no TOML"),
        (b'"x".' * 60_000, "32 words joined by dots"),
        (b"a = 1\n[b]\nc =", "line 3: this is no TOML"),
        (b"", "the setting 'name' is missing"),
    ],
)
def test_hostile_files_are_refused_at_once(tmp_path, content, told):
    path = tmp_path / "job.toml"
    path.write_bytes(content)
    started = time.perf_counter()
    with pytest.raises(FedSimError, match=told):
        read_job(path)
    assert time.perf_counter() - started < 2


def test_what_is_no_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.toml", tmp_path / ("x" * 300), Path("/dev/zero"), Path("a\0b")):
        with pytest.raises(FileError):
            read_job(path)


def test_the_words_are_those_of_training():
    from fedsim.registry import METHODS, PRESETS  # noqa: PLC0415

    assert set(get_args(MethodWord)) | set(SIMULATION_ONLY_METHODS) == set(METHODS)
    assert set(get_args(TrainingSettings.model_fields["preset"].annotation)) == set(PRESETS.names(in_jobs=True))


def test_files_of_parties_are_read_without_heavy_libraries():
    modules = ["config.job", "config.party_file", "config.policy", "config.disclosure", "config.party_columns"]
    modules += ["runs.approval", "runs.audit_log", "runs.run_folder"]
    heavy = "{'torch', 'polars', 'numba', 'scipy', 'sklearn', 'rich', 'grpc'}"
    script = f"import sys, {', '.join('fedsim.' + name for name in modules)}; print({heavy} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
