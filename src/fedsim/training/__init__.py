"""Train, predict and look into split networks; needs torch and numpy alone."""

from __future__ import annotations

from fedsim.training.config import Config
from fedsim.training.data import Goal, PrimaryData, SecondaryData
from fedsim.training.history import Epoch
from fedsim.training.hooks import Hook, Outline
from fedsim.training.labels import MinMaxLabel, StandardLabel
from fedsim.training.model import Model
from fedsim.training.presets import modern, paper
from fedsim.training.run import Result, train

__all__ = [
    "Config",
    "Epoch",
    "Goal",
    "Hook",
    "MinMaxLabel",
    "Model",
    "Outline",
    "PrimaryData",
    "Result",
    "SecondaryData",
    "StandardLabel",
    "modern",
    "paper",
    "train",
]
