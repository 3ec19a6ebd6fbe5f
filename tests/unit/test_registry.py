"""Registries: names in order, errors with suggestions, lazy imports, and what both sides of the cut read from them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest

import fedsim_lab  # noqa: F401 - registers the presets of the paper's datasets
from error_fixtures import raises
from fedsim.errors import SettingError
from fedsim.hyperparameters import TrainingSettings
from fedsim.registry import METHODS, PRESETS, Registry
from fedsim.splitnn.methods import Top1Sim
from fedsim.splitnn.secondary_model import MODERN, secondary_config
from fedsim.training.config import build_config


@dataclass(frozen=True)
class NarrowCut(Top1Sim):
    """A method from outside the package whose secondaries send seven numbers per row."""


def narrow(local):
    return replace(local, cut=7)


def test_unknown_and_repeated_names_are_refused():
    colours = Registry("colour")
    colours.register("red", 1)
    with pytest.raises(SettingError) as caught:
        colours["rod"]
    assert (caught.value.code, caught.value.details["known"]) == ("unknown-colour", ("red",))
    with pytest.raises(SettingError, match="; choose from: red"):
        colours["heliotrope"]
    with raises(SettingError, "already-registered"):
        colours.register("red", 2)


@pytest.mark.parametrize("name", METHODS.names())
def test_every_method_has_a_summary_and_is_found_by_its_class(name):
    assert METHODS.summary(name)
    network = "fedsim" if METHODS.detail(name, "trees") else name  # the same network, beside trees
    assert METHODS.name_of(METHODS[name]) == network


@pytest.mark.parametrize("name", PRESETS.names())
def test_a_preset_says_the_same_above_and_below_the_cut(name):
    config = PRESETS[name].build()
    assert PRESETS.summary(name)
    assert (config.local, config.optimiser) == (PRESETS[name].local, PRESETS[name].optimiser)
    assert build_config("fedsim", TrainingSettings(preset=name), seed=0, device="auto") == config


def test_the_primary_takes_local_network_and_optimiser_of_its_preset():
    wide = replace(MODERN, local=replace(MODERN.local, hidden=(512,)))
    with PRESETS.temporarily("wide", wide):
        config = build_config("fedsim", TrainingSettings(preset="wide"), seed=1, device="cpu")
        assert config.local.hidden == (512,)
        assert config.secondary == secondary_config("fedsim", TrainingSettings(preset="wide"), seed=1)


def test_a_job_can_use_neither_simulations_nor_research_presets():
    assert METHODS.names(in_jobs=True) == ("fedsim", "avgsim", "featuresim", "top1sim", "stacked")
    assert PRESETS.names(in_jobs=True) == ("modern", "paper")


def test_both_sides_of_the_cut_build_the_network_that_a_method_registers():
    with METHODS.temporarily("narrow", NarrowCut, secondary_network=narrow):
        config = build_config("narrow", TrainingSettings(), seed=5, device="cpu")
        assert config.secondary == secondary_config("narrow", TrainingSettings(), seed=5)
        assert config.secondary.local.cut == 7
        assert config.local.cut == PRESETS["modern"].local.cut


def test_a_plugin_of_an_installed_package_registers_its_choices_before_a_command_runs(tmp_path):
    (tmp_path / "outside.py").write_text(
        "from fedsim.registry import METRICS\n"
        "METRICS.register('outside', 'fedsim.linkage.metrics:HAMMING', summary='From outside.')\n"
    )
    installed = tmp_path / "outside-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[fedsim.plugins]\noutside = outside\n")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "fedsim", "explain", "metric"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True)
    assert ", outside" in done.stdout
