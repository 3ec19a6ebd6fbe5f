"""The configuration of a training run and the built-in presets."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fedsim import registry, validation
from fedsim.errors import SettingError
from fedsim.hyperparameters import TrainingSettings
from fedsim.splitnn import FedSim, gates, layers, methods, party_model, secondary_model
from fedsim.training.data import LabelScaler, MinMaxLabel, StandardLabel
from fedsim.types import training_length

MAX_PARTY_DROPOUT = 0.5


@dataclass(frozen=True)
class Config:
    """Everything that decides a training run, in one frozen value.

    Parameters
    ----------
    method
        How the partners of a record are used.
    local
        Local network of every party.
    optimiser
        Optimiser of every party.
    label
        Scaling of numeric labels; classes need none.
    epochs, batch
        Number of epochs, and training records per step.
    patience
        Stop after this many epochs without a better one, or continue with the end of a falling learning-rate schedule;
        None runs all epochs.
    members
        Networks of the primary that are trained side by side and averaged; the secondaries' networks are shared.
    party_dropout
        Share of the training records that do without a secondary, drawn for each secondary and step; FedSim can then
        predict without one that is away.
    seed
        Random seed of weights, dropout and batches.
    save_every, save_steps
        Epochs between checkpoints, and steps between those inside an epoch (None: none inside).
    device
        ``"cpu"``, ``"cuda"`` or ``"auto"``; it changes nothing but speed and the last digits.

    Examples
    --------
    >>> Config(epochs=3, batch=128).steps_per_epoch(300)
    3
    """

    method: methods.Method = field(default_factory=FedSim)
    local: layers.Local = field(default_factory=layers.Local)
    optimiser: party_model.OptimiserConfig = field(default_factory=party_model.AdamW)
    label: LabelScaler = field(default_factory=MinMaxLabel)
    epochs: int = 100
    batch: int = 128
    patience: int | None = None
    members: int = field(default=1, metadata=party_model.OMITTED_IF_DEFAULT)
    party_dropout: float = field(default=0.0, metadata=party_model.OMITTED_IF_DEFAULT)
    seed: int = 0
    save_every: int = 1
    save_steps: int | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "patience", "members", "save_every", "save_steps"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, validation.validate_integer(getattr(self, name), name, least=1))
        object.__setattr__(self, "seed", validation.validate_integer(self.seed, "seed", least=0))
        party_model.check_learning_rate(self.optimiser.rate)
        validation.validate_number(self.party_dropout, "party_dropout", least=0, most=MAX_PARTY_DROPOUT)
        if self.party_dropout and not _allows_party_dropout(self.method):
            able = [name for name in registry.METHODS if registry.METHODS.detail(name, "party_dropout")]
            message = f"party_dropout={self.party_dropout}, but {type(self.method).__name__} needs every secondary"
            raise SettingError(f"{message}; choose {' or '.join(able)}, or 0", code="needs-every-secondary")

    @property
    def secondary(self) -> secondary_model.SecondaryConfig:
        """What the secondaries run."""
        local = secondary_model.secondary_network(registry.METHODS.name_of(type(self.method)), self.local)
        return secondary_model.SecondaryConfig(local, self.optimiser, self.seed)

    def steps_per_epoch(self, n_records: int) -> int:
        """Return the number of batches for a number of training records; the last may be smaller."""
        return -(-n_records // self.batch)


def _allows_party_dropout(method: methods.Method) -> bool:
    """Return whether records can be trained without some secondaries; the registration says so, as for jobs."""
    name = registry.METHODS.name_of(type(method))
    return name is not None and bool(registry.METHODS.detail(name, "party_dropout"))


def modern_preset(
    method: methods.Method | None = None,
    *,
    epochs: int = 60,
    batch: int = 512,
    patience: int | None = 12,
    members: int = 8,
    seed: int = 0,
) -> Config:
    """Return the default: members, encoded numbers, a match gate, attention over the partners, AdamW, linear output.

    Parameters
    ----------
    method
        A method other than this preset's FedSim.
    epochs, batch, patience, members, seed
        As in :class:`Config`.
    """
    method = method or FedSim(
        hidden=64,
        outputs=32,
        similarity_bins=16,
        merge=gates.AttentionMerge(),
        match=gates.MatchGate(),
        primary_in_pairs=False,
    )
    own = secondary_model.MODERN
    length = {"epochs": epochs, "batch": batch, "patience": patience, "members": members}
    return Config(method, own.local, own.optimiser, StandardLabel(), **length, seed=seed)  # type: ignore[arg-type]


def build_config(
    method: str | methods.Method,
    settings: TrainingSettings,
    *,
    seed: int,
    device: str,
    n_train: int | None = None,
) -> Config:
    """Return the configuration of a training with this method and these settings.

    ``n_train``, the number of training records, decides how long a preset such as ``modern`` trains by default. Methods
    that need every secondary ignore the party dropout.

    >>> build_config("solo", TrainingSettings(preset="paper", epochs=3), seed=0, device="cpu").epochs
    3
    >>> build_config("solo", TrainingSettings(), seed=0, device="cpu", n_train=1_400).batch
    128
    """
    chosen: Any = registry.METHODS[method]() if isinstance(method, str) else method
    by_name = isinstance(method, str)
    own_method = None if by_name and isinstance(chosen, FedSim) else chosen  # a preset brings its own FedSim
    preset: secondary_model.Preset = registry.PRESETS[settings.preset]
    config: Config = preset.build(own_method)
    if n_train is not None and preset.by_size:
        config = replace(config, **asdict(training_length(n_train)))
    if not _allows_party_dropout(config.method):
        settings = replace(settings, party_dropout=None)
    config = settings.apply(config)
    return replace(config, seed=seed, device=device)
