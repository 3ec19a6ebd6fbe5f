"""What is shipped: a bill of all it needs, with licences that permit use, and a wheel whose bytes repeat."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from fedsim_lab.sbom import bill_of_materials

ROOT = Path(__file__).parents[2]
PERMISSIVE = ("mit", "bsd", "apache", "psf", "python software foundation", "isc", "mpl", "mozilla", "unlicense", "0bsd")


@pytest.fixture(scope="module")
def bill():
    return bill_of_materials()


def test_the_bill_lists_what_the_product_needs_with_versions_and_no_tool_of_its_tests(bill):
    found = {component["name"]: component["version"] for component in bill["components"]}
    assert {"torch", "cryptography", "grpcio", "numpy", "safetensors"} <= set(found)
    assert found["cryptography"] == version("cryptography")
    assert not {"pytest", "hypothesis", "mypy", "mkdocs-material"} & set(found)


def test_every_reference_of_the_bill_has_its_component_and_the_bill_repeats(bill):
    known = {component["bom-ref"] for component in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    named = {ref for entry in bill["dependencies"] for ref in (entry["ref"], *entry["dependsOn"])}
    assert named == known
    assert json.dumps(bill_of_materials(), sort_keys=True) == json.dumps(bill, sort_keys=True)


def test_licences_of_all_parts_permit_their_use(bill):
    stated = {
        component["name"]: component["licenses"][0]["license"]["name"].lower() for component in bill["components"]
    }
    doubtful = {name for name, text in stated.items() if not any(word in text for word in PERMISSIVE)}
    assert not {name for name in doubtful if not name.startswith("nvidia-")}  # CUDA libraries have their own terms


@pytest.mark.skipif("FEDSIM_WHEEL" not in os.environ, reason="builds two wheels; set FEDSIM_WHEEL to run it")
def test_two_wheels_of_the_same_sources_are_equal_byte_for_byte(tmp_path):
    hashes = []
    for name in ("first", "second"):
        sources = tmp_path / name
        for part in ("src", "pyproject.toml", "README.md", "LICENSE"):
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
            copy(ROOT / part, sources / part if (ROOT / part).is_dir() else _folder(sources) / part)
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "out", "."]
        subprocess.run(command, cwd=sources, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"})
        (wheel,) = (sources / "out").glob("*.whl")
        hashes.append(hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert hashes[0] == hashes[1]


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path
