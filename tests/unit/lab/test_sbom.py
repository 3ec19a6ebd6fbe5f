"""The bill of materials lists what the product needs, with licences that permit use."""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest

from fedsim_lab.sbom import bill_of_materials

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
