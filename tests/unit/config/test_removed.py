"""A job or party file that names a setting of an earlier version is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsim.config.job import Job, read_job
from fedsim.config.party_file import read_party_file
from fedsim.config.toml_file import REMOVED_SETTINGS, ConfigFileError

GOLDEN = Path(__file__).parents[2] / "golden"
LINES = {  # what a file of an earlier version said, by the setting that is gone
    "protection.coordinator": 'coordinator = "blind"',
    "protection.activations": "activations = { clip = 1.0, noise = 0.5 }",
    "protection.gradients": "gradients = { clip = 1.0, noise = 0.5 }",
    "protection.features.exchange_of": "features = { exchange_of = 5 }",
    "protection.features.average_of": "features = { average_of = 5 }",
    "secondaries.*.hide_rows": "hide_rows = true",
    "secondaries.*.dummies": "dummies = 0.2",
    "secondaries.*.aligned_with": 'aligned_with = "schools"',
    "secondaries.*.explanations": "explanations = false",
    "training.start_from": f'start_from = "{"0" * 64}"',
    "training.joining": 'joining = ["schools"]',
    "policy.explanations": "explanations = false",
    "policy.min_k": "min_k = 5",
    "policy.hardening": 'hardening = ["balance"]',
    "policy.methods": 'methods = ["fedsim"]',
    "policy.wire": 'wire = ["float32"]',
    "policy.max_epochs": "max_epochs = 40",
    "policy.max_repeated_epochs": "max_repeated_epochs = 5",
    "policy.max_links": "max_links = 500",
    "policy.primary": 'primary = ["city"]',
    "policy.coordinator": 'coordinator = ["notary"]',
    "policy.secondaries": 'secondaries = ["schools"]',
    "telemetry.otlp": 'otlp = "http://127.0.0.1:4318"',
    "data.password_file": 'password_file = "password"',
    "policy.blind_coordinator": "blind_coordinator = true",
    "policy.activations": "activations = { min_noise = 0.5 }",
    "policy.gradients": "gradients = { min_noise = 0.5 }",
    "policy.min_exchange_of": "min_exchange_of = 5",
    "policy.min_average_of": "min_average_of = 5",
    "policy.hide_rows": "hide_rows = true",
    "policy.min_dummies": "min_dummies = 0.2",
    "policy.min_degree": "min_degree = 5",
    "secondaries.*.min_degree": "min_degree = 5",
    "secondaries.*.similarities": 'similarities = "fields"',
    "secondaries.*.relative": "relative = true",
}


def file_with(folder: Path, setting: str, line: str) -> tuple[Path, str]:
    """A job or party file with a line in the section of this setting, and the full name of the setting."""
    section, _, name = setting.partition(".")
    kind = "job_rentals.toml" if section in ("policy", "data", "telemetry") else "job.toml"
    text = (GOLDEN / kind).read_text(encoding="utf-8")
    header = "[secondaries.rentals]" if section == "secondaries" else f"[{section}]"
    text = text if header in text else f"{text}\n{header}\n"
    path = folder / kind
    path.write_text(text.replace(f"{header}\n", f"{header}\n{line}\n"), encoding="utf-8")
    return path, f"secondaries.rentals.{name.partition('.')[2]}" if section == "secondaries" else setting


def test_every_removed_setting_is_tried_here():
    assert set(LINES) == set(REMOVED_SETTINGS)


@pytest.mark.parametrize("setting", REMOVED_SETTINGS)
def test_a_removed_setting_is_refused_in_one_line_with_the_way_out(tmp_path, setting):
    path, name = file_with(tmp_path, setting, LINES[setting])
    with pytest.raises(ConfigFileError) as caught:
        (read_job if path.name == "job.toml" else read_party_file)(path)
    [fault] = caught.value.faults
    assert (fault.code, fault.setting) == ("removed-setting", name)
    assert path.read_text(encoding="utf-8").splitlines()[fault.line - 1] == LINES[setting]
    assert str(caught.value) == fault.message
    assert "\n" not in fault.message
    assert fault.message.endswith(REMOVED_SETTINGS[setting])


def test_a_job_of_an_earlier_version_that_used_no_removed_setting_is_the_same_job():
    described = json.loads((GOLDEN / "job_0_2.json").read_text(encoding="utf-8"))["described"]
    job = Job.from_dict(described)
    assert "dummies" in described["secondaries"]["rentals"]
    assert "dummies" not in job.to_dict()["secondaries"]["rentals"]
    assert job.hash == Job.from_dict(job.to_dict()).hash


@pytest.mark.parametrize(
    ("section", "setting", "value"), [("secondaries", "dummies", 0.2), ("protection", "activations", {})]
)
def test_a_job_of_an_earlier_version_that_used_a_removed_setting_is_refused(section, setting, value):
    described = json.loads((GOLDEN / "job_0_2.json").read_text(encoding="utf-8"))["described"]
    (described["secondaries"]["rentals"] if section == "secondaries" else described["protection"])[setting] = value
    with pytest.raises(ConfigFileError) as caught:
        Job.from_dict(described)
    assert {fault.code for fault in caught.value.faults} == {"removed-setting"}
