"""Train, predict and look into split networks; needs torch and numpy alone."""

from __future__ import annotations

from fedsim.training.config import Config
from fedsim.training.data import Goal, HeldList, PrimaryData, SecondaryData
from fedsim.training.history import Epoch
from fedsim.training.hooks import Hook, Outline
from fedsim.training.labels import MinMaxLabel, StandardLabel
from fedsim.training.model import Model
from fedsim.training.presets import modern, paper
from fedsim.training.restore import restored
from fedsim.training.run import Result, train, train_with

__all__ = [
    "Config",
    "Epoch",
    "Goal",
    "HeldList",
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
    "restored",
    "train",
    "train_with",
]
