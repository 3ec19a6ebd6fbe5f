"""Train, predict and look into split networks; needs torch and numpy alone."""

from fedsim.training.config import Config, modern_preset
from fedsim.training.data import MinMaxLabel, NeighbourList, PrimaryData, SecondaryData, StandardLabel, TaskType
from fedsim.training.loop import Epoch, Hook, TrainingOutline
from fedsim.training.model import Model, TrainingResult, restore_model, train, train_with

__all__ = [
    "Config",
    "Epoch",
    "Hook",
    "MinMaxLabel",
    "Model",
    "NeighbourList",
    "PrimaryData",
    "SecondaryData",
    "StandardLabel",
    "TaskType",
    "TrainingOutline",
    "TrainingResult",
    "modern_preset",
    "restore_model",
    "train",
    "train_with",
]
