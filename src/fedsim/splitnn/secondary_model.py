"""A secondary below the cut: the interface that the primary uses, its in-process implementation, and embeddings.

Nothing here imports what is above the cut, because a secondary's own process runs this module.

Letters: n records, U distinct rows, E columns, C width of the cut layer or of an embedding.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.errors import SettingError
from fedsim.hyperparameters import TrainingSettings
from fedsim.registry import METHODS, PRESETS, load_value
from fedsim.splitnn import party_model
from fedsim.splitnn.layers import Bare, FeatureTensors, Local, Perceptron, Piecewise
from fedsim.splitnn.party_model import CPU, AdamW, OptimiserConfig, PartyModel, RandomSource, WarmCosine
from fedsim.storage.tensor_file import scratch_array
from fedsim.types import AnyArray, Features, Floats, Floats32


class Secondary(Protocol):
    """A party below the cut, as the primary sees it.

    Only three things cross the cut during training: distinct row numbers out, activations in, gradients out. Weights,
    optimiser and random numbers stay on their side; the step number lets each side draw random numbers and schedule
    independently, and return to a checkpoint. An attempt at a job starts with ``begin``, then ``restore`` if there is a
    checkpoint. A step is ``ask``, ``activations``, ``descend``; a prediction is ``ask``, ``infer``. Tensors are on the
    same device as the rows.
    """

    @property
    def name(self) -> str: ...

    @property
    def width(self) -> int:
        """C; a remote party may report its width and number of records only in ``begin``."""

    @property
    def n_records(self) -> int: ...

    def begin(self, total_steps: int) -> None:
        """Start with newly drawn weights, discarding any earlier attempt; ``restore`` or step 0 comes next."""

    def ask(self, rows: Tensor, step: int | None) -> None:
        """Announce the rows to be fetched next, for a training step or (None) ``infer``, so that work can start."""

    def activations(self, rows: Tensor, step: int) -> Tensor:
        """Return the cut layer activations of these distinct rows, (U,) -> (U, C), for training step ``step``."""

    def descend(self, gradients: Tensor, step: int) -> None:
        """Finish the step with the gradients of the last activations, (U, C)."""

    def infer(self, rows: Tensor) -> Tensor:
        """Return the cut layer activations of these distinct rows, without dropout."""

    def keep_best(self) -> None:
        """Remember the current weights: this epoch is the best so far."""

    def use_best(self) -> None:
        """Return to the weights of the best epoch."""

    def save(self, step: int) -> None:
        """Write a checkpoint of the state after ``step`` steps; it is on disk when this returns."""

    def restore(self, step: int) -> None:
        """Return to the checkpoint of ``step``; raises DamagedCheckpoint if it cannot be read."""

    def forget_before(self, step: int) -> None:
        """Delete checkpoints older than this step."""


@dataclass(frozen=True)
class AbsentSecondary:
    """A secondary that is unavailable at prediction; implements the part of :class:`Secondary` that predictions use."""

    name: str
    width: int
    n_records: int

    def ask(self, rows: Tensor, step: int | None) -> None:
        """Do nothing: there is no secondary to ask."""

    def infer(self, rows: Tensor) -> Tensor:
        """Return zeros, which the network ignores."""
        return torch.zeros(len(rows), self.width, device=rows.device)


INFERENCE_ROWS = 65536  # rows per forward pass outside training


@dataclass(eq=False)
class LocalSecondary:
    """A :class:`Secondary` in this process; without a checkpoint store, it saves no checkpoints."""

    name: str
    width: int
    model: PartyModel
    features: FeatureTensors
    checkpoint_store: party_model.CheckpointStore | None = None
    _pending: tuple[int, Tensor] | None = field(default=None, init=False)

    @property
    def n_records(self) -> int:
        return len(self.features)

    @property
    def pending_shape(self) -> tuple[int, int] | None:
        """Shape (U, C) of the activations that are waiting for gradients, if any."""
        return None if self._pending is None else (len(self._pending[1]), self.width)

    def begin(self, total_steps: int) -> None:
        self.model.start(total_steps)
        self._pending = None
        if self.checkpoint_store:
            job = {**self.checkpoint_store.job, "steps": total_steps}
            self.checkpoint_store = replace(self.checkpoint_store, job=job)

    def ask(self, rows: Tensor, step: int | None) -> None:
        """Do nothing: in this process, there is no work to start early."""

    def activations(self, rows: Tensor, step: int) -> Tensor:
        self.model.begin(step)
        outputs: Tensor = self.model.network(self.features.take(rows), self.model.dropout)  # (U, C)
        self._pending = step, outputs
        return outputs.detach()

    def descend(self, gradients: Tensor, step: int) -> None:
        pending_step, outputs = self._pending or (None, gradients)
        if pending_step != step:
            steps = f"gradients of step {step}, but its activations are of step {pending_step}"
            raise SettingError(f"{self.name} received {steps}; ask for activations first", code="step-mismatch")
        self._pending = None
        if outputs.requires_grad:
            outputs.backward(gradients)
        self.model.descend()

    @torch.no_grad()
    def infer(self, rows: Tensor) -> Tensor:
        chunks = [self.model.network(self.features.take(chunk)) for chunk in rows.split(INFERENCE_ROWS)]
        return torch.cat(chunks) if chunks else torch.empty(0, self.width)

    def keep_best(self) -> None:
        self.model.keep_best()

    def use_best(self) -> None:
        self.model.use_best()

    def save(self, step: int) -> None:
        self._store().save(step, self.model.tensors(), {})

    def restore(self, step: int) -> None:
        self.model.load(self._store().load(step)[0])

    def forget_before(self, step: int) -> None:
        self._store().forget_before(step)

    def _store(self) -> party_model.CheckpointStore:
        if self.checkpoint_store is None:
            message = f"{self.name} has no checkpoint folder; provide one, or train without checkpoints"
            raise SettingError(message, code="no-checkpoint-folder")
        return self.checkpoint_store


# Settings of secondaries, and secondaries built from them


@dataclass(frozen=True)
class Preset:
    """Named settings for all parties: every party's local network and optimiser, and the primary's configuration.

    ``config`` is a function from a method (None for the preset's own) to the primary's :class:`fedsim.training.Config`,
    or ``"module:function"``, which only the primary imports because it is above the cut. ``epochs`` and ``batch``
    (records per step) are the defaults for jobs that set neither; a secondary derives from them how long it may be
    queried. ``by_size`` means that both follow from the number of training records where that is known.
    """

    local: Local
    optimiser: OptimiserConfig
    config: Any
    epochs: int = 100
    batch: int = 128
    by_size: bool = False

    def build(self, method: Any = None) -> Any:
        """Return the primary's configuration with the given method, or with the preset's own.

        Local network, optimiser and training length always come from the preset, because secondaries read them here.
        """
        config, length = load_value(self.config)(method), {"epochs": self.epochs, "batch": self.batch}
        return replace(config, local=self.local, optimiser=self.optimiser, **length)


MODERN = Preset(
    Local(encoding=Piecewise(), hidden=(256,), cut=128, dropout=0.1, sent=32),
    AdamW(rate=2e-3, decay=1e-2, schedule=WarmCosine()),
    "fedsim.training.config:modern_preset",
    epochs=60,
    batch=512,
    by_size=True,
)


@dataclass(frozen=True)
class SecondaryConfig:
    """What all secondaries of a job run: network, optimiser and random seed."""

    local: Local | Bare
    optimiser: OptimiserConfig
    seed: int

    def __post_init__(self) -> None:
        party_model.check_learning_rate(self.optimiser.rate)

    @property
    def width(self) -> int | None:
        """C; None if the encoded features themselves cross the cut, whose number only the secondary knows."""
        return self.local.cut if isinstance(self.local, Local) else None


def secondary_config(method: str, settings: TrainingSettings, *, seed: int) -> SecondaryConfig:
    """Return what secondaries run under a method and the settings of a training.

    >>> secondary_config("fedsim", TrainingSettings(preset="paper", learning_rate=0.01), seed=0).optimiser.rate
    0.01
    """
    chosen: Preset = settings.apply(PRESETS[settings.preset])
    return SecondaryConfig(secondary_network(method, chosen.local), chosen.optimiser, seed)


def secondary_network(method: str | None, local: Local) -> Local | Bare:
    """Return the network that secondaries run for a registered method: the preset's, unless the method changes it.

    Its cut layer has the width that the preset sets for what is sent. The network is part of the registration, not of
    the method's class, because a secondary cannot import the class: it is above the cut.
    """
    own = replace(local, cut=local.sent or local.cut, sent=None)
    change = None if method is None else METHODS.detail(method, "secondary_network")
    return own if change is None else change(own)


def start_secondary(
    name: str,
    features: Features,
    config: SecondaryConfig,
    *,
    total_steps: int,
    device: torch.device = CPU,
    folder: Path | None = None,
) -> LocalSecondary:
    """Return a secondary at step 0; if a folder is given, it saves checkpoints there.

    It fits its encoding on all its rows; none of them is a test row.
    """
    party = _build_secondary(name, features, config, device)
    if folder:
        job = {
            "party": name,
            "seed": config.seed,
            "local": party_model.describe(config.local),
            "optimiser": party_model.describe(config.optimiser),
            "data": party_model.arrays_fingerprint([features.numbers, features.codes]),
        }
        party.checkpoint_store = party_model.CheckpointStore(folder, job)  # ``begin`` adds the number of steps
    party.begin(total_steps)
    return party


def restore_secondary(
    name: str, features: Features, config: SecondaryConfig, weights: Mapping[str, Tensor], *, device: torch.device = CPU
) -> LocalSecondary:
    """Return a secondary with these learnt weights, ready to infer."""
    party = _build_secondary(name, features, config, device)
    party.model.fill(weights)
    return party


def _build_secondary(name: str, features: Features, config: SecondaryConfig, device: torch.device) -> LocalSecondary:
    features.check(name)
    network = config.local.build(features)
    model = PartyModel(network, config.optimiser, RandomSource(config.seed, name), device)
    return LocalSecondary(name, network.width, model, FeatureTensors.of(features, device))


# The embedding that a secondary sends under sealed labels: one vector per row, not influenced by any label. The
# secondary computes it once, with secret weights, from its own table alone.


MAX_CATEGORIES = 32  # rarer categories of a column share one of its columns
EPOCHS, BATCH, HIDDEN_SHARE = 40, 256, 0.3
MIN_STEPS = 400
BLOCK_ROWS = 1 << 16  # in double precision at a time


def embed(features: Features, kind: str, width: int, source: RandomSource, folder: Path | None = None) -> Floats32:
    """Return one row per record, (n, C); every column has mean 0 and standard deviation 1, or is constant.

    Parameters
    ----------
    features
        The secondary's columns.
    kind
        ``features``: the columns themselves; ``random``: random features of them; ``autoencoder``: the middle layer of
        a network that reconstructs hidden columns.
    width
        C, except for ``features``, which keeps one column per number and category.
    source
        The secondary's secret random numbers.
    folder
        Folder for the file of a large embedding; by default the embedding stays in memory.
    """
    if kind not in EMBEDDINGS:
        message = f"embedding '{kind}' is unknown; choose {' or '.join(EMBEDDINGS)}"
        raise SettingError(message, code="unknown-name")
    columns, write = passed_columns(features), EMBEDDINGS[kind]
    if write is None:
        return columns
    rows = scratch_array((len(columns), width), np.float32, folder)
    return _standardise(write(columns, rows, source), rows)


def passed_columns(features: Features) -> Floats32:
    """Return the ranks of numbers and one column per category, standardised, (n, E).

    >>> passed_columns(Features(np.array([[5.0], [1.0], [900.0]]))).round(2).tolist()
    [[0.0], [-1.2200000286102295], [1.2200000286102295]]
    """
    parts = [_ranks(column)[:, None] for column in features.numbers.T]
    for codes, cardinality in zip(features.codes.T, features.cardinalities, strict=True):
        common = np.argsort(-np.bincount(codes, minlength=cardinality), kind="stable")[:MAX_CATEGORIES]
        parts.append(codes[:, None] == common)
    columns = np.hstack(parts)
    return _standardise(columns, np.empty(columns.shape, np.float32))


def _ranks(column: Floats32) -> AnyArray:
    """Return the rank of every value; equal values share the mean of their ranks."""
    _, place, counts = np.unique(column, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def _standardise(columns: AnyArray, out: Floats32) -> Floats32:
    """Standardise the columns into ``out``, which may be the same array, and return it."""
    mean = _column_means(columns, lambda rows: rows)
    deviation = np.sqrt(_column_means(columns, lambda rows: np.square(rows - mean)))
    for here in _blocks(columns):
        out[here] = (columns[here].astype(np.float64) - mean) / np.where(deviation > 0, deviation, 1.0)
    return out


def _column_means(columns: AnyArray, of: Callable[[Floats], Floats]) -> Floats:
    """Return the column means of a function of the rows, bit for bit equal to ``mean(axis=0)``."""
    total = np.zeros((0, columns.shape[1]))
    for here in _blocks(columns):
        total = np.vstack([total, of(columns[here].astype(np.float64))]).sum(axis=0, keepdims=True)
    return np.asarray(total[0] / len(columns))


def _blocks(columns: AnyArray) -> list[slice]:
    return [slice(first, first + BLOCK_ROWS) for first in range(0, len(columns), BLOCK_ROWS)]


def _random_features(columns: Floats32, out: Floats32, source: RandomSource) -> Floats32:
    """Write random projections to ``out``, half of them rectified at a random threshold, and return it."""
    rng, width = source.rng("embedding"), out.shape[1]
    directions = rng.normal(size=(columns.shape[1], width)) / np.sqrt(columns.shape[1])
    height = rng.normal(size=width - width // 2)
    for here in _blocks(columns):
        found = columns[here].astype(np.float64) @ directions
        found[:, width // 2 :] = np.maximum(found[:, width // 2 :] - height, 0.0)
        out[here] = found
    return out


class _ColumnFiller(nn.Module):
    """Columns with some hidden -> embedding -> all columns."""

    def __init__(self, n_columns: int, width: int) -> None:
        super().__init__()
        self.encoder = Perceptron([2 * n_columns, 2 * width, width])
        self.decoder = Perceptron([width, 2 * width, n_columns])

    def embed(self, columns: Tensor, shown: Tensor) -> Tensor:
        embedded: Tensor = self.encoder(torch.cat([columns * shown, shown], dim=1))
        return embedded

    def forward(self, columns: Tensor, shown: Tensor) -> Tensor:
        filled: Tensor = self.decoder(self.embed(columns, shown))
        return filled


def _fill_hidden_columns(columns: Floats32, out: Floats32, source: RandomSource) -> Floats32:
    """Train a network to fill in hidden columns, write its middle layer for complete rows to ``out``, and return it."""
    network, table = _ColumnFiller(columns.shape[1], out.shape[1]), torch.from_numpy(columns)
    batch = min(BATCH, len(table))
    total = max(MIN_STEPS, EPOCHS * len(table) // batch)
    model = PartyModel(network, AdamW(rate=2e-3, decay=1e-4), source, CPU)
    model.start(total)
    rng = source.rng("embedding rows")
    for step in range(total):
        model.begin(step)
        rows = torch.from_numpy(rng.integers(0, len(table), batch))
        shown = torch.from_numpy((rng.random((batch, columns.shape[1])) >= HIDDEN_SHARE).astype(np.float32))
        wanted = table.index_select(0, rows)
        (network(wanted, shown) - wanted).square().mean().backward()
        model.descend()
    with torch.no_grad():
        for here in _blocks(columns):
            out[here] = network.embed(table[here], torch.ones_like(table[here])).numpy()
    return out


EMBEDDINGS = {"features": None, "random": _random_features, "autoencoder": _fill_hidden_columns}
