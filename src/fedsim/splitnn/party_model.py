"""One party's share of the model: random numbers, optimiser, schedule, network, best weights, device, checkpoints."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsim.errors import DeviceError, FedSimError, FileError, SettingError
from fedsim.registry import LazyModule
from fedsim.splitnn.layers import initialise_weights
from fedsim.storage import files, tensor_file
from fedsim.types import derive_seed
from fedsim.validation import first_difference, validate_number

if TYPE_CHECKING:
    import safetensors
    import safetensors.torch as tensor_bytes
else:  # experiments that store nothing run where safetensors is not installed
    safetensors, tensor_bytes = LazyModule("safetensors"), LazyModule("safetensors.torch")

CPU = torch.device("cpu")
log = logging.getLogger(__name__)

# Reproducible random numbers, derived from the job's seed, the party, the purpose and the training step.
#
# Every step creates new generators, so there is no generator state to save: a party that restarts at step 700 draws
# what it would have drawn anyway, and no party needs another's random numbers.


@dataclass(frozen=True)
class RandomSource:
    """One party's random numbers."""

    seed: int
    party: str

    def generator(self, purpose: str, step: int = 0, device: torch.device = CPU) -> torch.Generator:
        """Return a torch generator for this purpose at this step."""
        return torch.Generator(device).manual_seed(self.step_seed(purpose, step))

    def step_seed(self, purpose: str, step: int = 0) -> int:
        """Return the seed for this purpose at this step."""
        return derive_seed(self.seed, self.party, purpose, step)

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a NumPy generator for values that are drawn once, before training."""
        return np.random.default_rng(self.step_seed(purpose))


# Optimisers. Every party has its own: no optimiser state crosses the cut.


class RunningOptimiser(Protocol):
    """An optimiser bound to its parameters.

    ``begin`` copies values that depend on the step number to the device; ``step`` depends only on data on the device,
    so a GPU can record it once and replay it.
    """

    def begin(self, step: int) -> None:
        """Set the learning rate of this step; steps are counted from zero."""

    def step(self) -> None:
        """Update every parameter from its gradient."""

    def state(self) -> dict[str, list[Tensor]]:
        """Return the state kept between steps, by name, each entry in the order of the parameters."""


class OptimiserConfig(Protocol):
    """Settings of an optimiser."""

    @property
    def rate(self) -> float: ...

    def start(self, parameters: Iterable[nn.Parameter], total_steps: int) -> RunningOptimiser: ...


def check_learning_rate(rate: Any) -> None:
    """Raise SettingError unless the rate is a number above zero."""
    validate_number(rate, "learning_rate", above=0)


class Schedule(Protocol):
    """A factor on the learning rate, which every party computes from the step number alone."""

    def factor(self, step: int, total_steps: int) -> float: ...


@dataclass(frozen=True)
class WarmCosine:
    """A linear warm-up over the first ``warm`` share of the steps, then half a cosine down to ``floor``.

    >>> [round(WarmCosine(warm=0.5, floor=0.0).factor(step, 8), 2) for step in range(8)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.85, 0.5, 0.15]
    """

    warm: float = 0.05
    floor: float = 0.01

    def factor(self, step: int, total_steps: int) -> float:
        warm_steps = max(1, round(self.warm * total_steps))
        if step < warm_steps:
            return (step + 1) / warm_steps
        done = (step - warm_steps) / max(1, total_steps - warm_steps)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * min(1.0, done))) / 2


class Moments:
    """The state of an optimiser: parameters, both moments, and the learning rate as a scalar on the device."""

    def __init__(self, settings: Any, parameters: Iterable[nn.Parameter], total_steps: int) -> None:
        self.settings, self.total_steps = settings, total_steps
        self.parameters: list[Tensor] = [*parameters]
        self.means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.device = self.parameters[0].device if self.parameters else CPU
        # CUDA's fused kernels expect the rate as float32; float64 keeps full precision on the CPU.
        rate_type = torch.float64 if self.device.type == "cpu" else torch.float32
        self.rate, self._rate = torch.zeros((), dtype=rate_type, device=self.device), 0.0

    def begin(self, step: int) -> None:
        rate = self.settings.rate * self.settings.schedule.factor(step, self.total_steps)
        if rate != self._rate:
            self.rate.fill_(rate)
            self._rate = rate

    def state(self) -> dict[str, list[Tensor]]:
        return {"mean": self.means, "square": self.squares}

    def fused(
        self, kernel: Callable[..., Any], places: Sequence[int], targets: Sequence[Tensor], count: Tensor, **rates: Any
    ) -> None:
        """Update both moments at these indices and add the step to the targets, in one pass over memory."""
        gradients = [self.parameters[place].grad for place in places]  # None for parameters without a gradient
        pairs = zip(places, gradients, strict=True)
        kernel(
            [targets[place] for place in places],
            [torch.zeros_like(targets[place]) if gradient is None else gradient for place, gradient in pairs],
            [self.means[place] for place in places],
            [self.squares[place] for place in places],
            [],
            [count] * len(places),
            **dict(zip(("beta1", "beta2"), self.settings.betas, strict=True), eps=self.settings.eps, **rates),
            amsgrad=False,
            maximize=False,
        )


@dataclass(frozen=True)
class AdamW:
    """AdamW (Loshchilov and Hutter, 2019); weight decay acts on matrices, not on biases or learnt scalars."""

    rate: float = 1e-3
    decay: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    schedule: Schedule = field(default_factory=WarmCosine)

    def start(self, parameters: Iterable[nn.Parameter], total_steps: int) -> RunningAdamW:
        return RunningAdamW(self, parameters, total_steps)


class RunningAdamW(Moments):
    """AdamW with torch's fused kernel.

    ``torch.optim.AdamW(fused=True)`` runs the same kernel but does not fit here: it creates its moments in the first
    step, whereas a checkpoint is restored before it; it counts steps itself, whereas ours come from the job; and it
    skips parameters without a gradient, so which weights decay would depend on the batch.
    """

    def __init__(self, settings: AdamW, parameters: Iterable[nn.Parameter], total_steps: int) -> None:
        super().__init__(settings, parameters, total_steps)
        matrices = [place for place, parameter in enumerate(self.parameters) if parameter.dim() > 1]
        others = [place for place, parameter in enumerate(self.parameters) if parameter.dim() <= 1]
        self._groups = [(places, decay) for places, decay in ((matrices, settings.decay), (others, 0.0)) if places]
        self._count = torch.zeros((), device=self.device)

    def begin(self, step: int) -> None:
        super().begin(step)
        self._count.fill_(step + 1)

    @torch.no_grad()
    def step(self) -> None:
        for places, decay in self._groups:
            self.fused(torch._fused_adamw_, places, self.parameters, self._count, lr=self.rate, weight_decay=decay)


# A party's share of the model


Weights = dict[str, Tensor]


@dataclass(eq=False)
class PartyModel:
    """A party's network, optimiser and best weights; call ``start`` or ``fill`` first to set the weights."""

    network: nn.Module
    settings: OptimiserConfig
    random_source: RandomSource
    device: torch.device
    optimiser: RunningOptimiser = field(init=False)
    best: Weights = field(default_factory=dict, init=False)
    dropout: torch.Generator = field(init=False)  # draws the masks of the current step
    _step: int | None = field(default=None, init=False)

    def start(self, total_steps: int) -> None:
        """Draw the weights on the CPU (the same for every device) and discard everything learnt before."""
        initialise_weights(self.network.to(CPU), self.random_source.generator("weights"))
        self.network.to(self.device).zero_grad(set_to_none=True)
        self.optimiser = self.settings.start(self.network.parameters(), total_steps)
        self.dropout = torch.Generator(self.device)
        self.best, self._step = {}, None

    def fill(self, weights: Mapping[str, Tensor]) -> None:
        """Load weights from earlier training as the best weights."""
        try:
            self.network.load_state_dict(dict(weights))
        except RuntimeError as error:
            party = self.random_source.party
            message = f"the weights of {party} do not fit the model they were saved with; save it again"
            raise FileError(message, code="weights-mismatch") from error
        self.network.to(self.device)
        self.keep_best()

    def begin(self, step: int) -> None:
        """Set the random seed and learning rate of a step; a second call for the same step changes nothing."""
        if step != self._step:
            self.dropout.manual_seed(self.random_source.step_seed("dropout", step))
            self.optimiser.begin(step)
            self._step = step

    def descend(self) -> None:
        """Update the weights from their gradients, then clear the gradients."""
        self.optimiser.step()
        self.network.zero_grad(set_to_none=True)

    def keep_best(self) -> None:
        """Remember the current weights as the best."""
        self.best = {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()}

    def use_best(self) -> None:
        """Return to the best weights."""
        self.network.load_state_dict(self.best)

    def tensors(self) -> Weights:
        """Return all tensors of a checkpoint, by name."""
        tensors = {f"now/{name}": tensor for name, tensor in self.network.state_dict().items()}
        tensors |= {f"best/{name}": tensor for name, tensor in self.best.items()}
        for kind, moments in self.optimiser.state().items():
            tensors |= {f"{kind}/{place}": tensor for place, tensor in enumerate(moments)}
        return tensors

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`tensors` returned."""

        def having(prefix: str) -> Weights:
            return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

        self.network.load_state_dict(having("now/"))
        self._step = None
        self.best = {name: tensor.to(self.device) for name, tensor in having("best/").items()}
        for kind, moments in self.optimiser.state().items():
            for place, tensor in enumerate(moments):
                tensor.copy_(tensors[f"{kind}/{place}"])


DEVICE_NAMES = ("auto", "cpu", "cuda")


def resolve_device(name: str) -> torch.device:
    """Return the device for ``cpu`` or ``cuda``; ``auto`` selects the GPU if there is one.

    >>> resolve_device("cpu")
    device(type='cpu')
    """
    if name not in DEVICE_NAMES:
        message = f"device '{name}' is unknown; choose {', '.join(DEVICE_NAMES)}"
        raise SettingError(message, code="unknown-device", value=name)
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise DeviceError("device='cuda', but torch finds no GPU; choose cpu or auto", code="no-gpu")
    return torch.device("cuda" if name != "cpu" and available else "cpu")


# Checkpoints on disk: one folder per step with tensors.safetensors and facts.json. The facts hold the SHA-256 of the
# tensors and the description of the job; nothing is ever unpickled. A folder appears complete or not at all, so a kill
# or a full disk leaves earlier checkpoints intact.

CHECKPOINT_FORMAT = "fedsim checkpoint 1"


class DamagedCheckpoint(FileError):  # noqa: N818
    """A checkpoint that cannot be read; an earlier one may be intact."""


@dataclass(frozen=True)
class CheckpointStore:
    """The checkpoints of one party in one job; only a checkpoint with an equal description of the job is loaded."""

    folder: Path  # one subfolder per step
    job: Mapping[str, Any]

    def steps(self) -> list[int]:
        """List the stored steps in ascending order."""
        names = (path.name.removeprefix("step-") for path in self.folder.glob("step-*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def save(self, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write a checkpoint; it replaces one of the same step left behind by a killed run.

        Weights that are not finite are never written, so the last good checkpoint remains the latest.
        """
        broken = [name for name, each in tensors.items() if each.is_floating_point() and not each.isfinite().all()]
        if broken:
            message = f"training has diverged: {len(broken)} of {len(tensors)} tensors are no longer finite"
            raise FedSimError(f"{message}; nothing was saved: lower the learning rate", code="not-finite", step=step)
        packed = tensor_bytes.save({name: tensor.detach().contiguous() for name, tensor in tensors.items()})
        head = {"format": CHECKPOINT_FORMAT, "step": step, "sha256": hashlib.sha256(packed).hexdigest()}
        try:
            with files.atomic_folder(self._path(step)) as part:
                (part / "tensors.safetensors").write_bytes(packed)
                content = json.dumps({**head, "job": self.job, "facts": facts}, indent=1)
                (part / "facts.json").write_text(content, encoding="utf-8")
        except FileError as error:
            last = max(self.steps(), default=None)
            intact = "there is no earlier checkpoint" if last is None else f"the checkpoint of step {last} is intact"
            message = f"cannot write the checkpoint of step {step}: {error}; {intact}: free space and run again"
            raise FileError(message, code="checkpoint-not-written", step=step, last=last) from error

    def load(self, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and facts of a checkpoint of this job."""
        path = self._path(step)
        try:
            stored = json.loads((path / "facts.json").read_bytes())
            packed = (path / "tensors.safetensors").read_bytes()
            if stored["format"] != CHECKPOINT_FORMAT:
                formats = f"the format '{stored['format']}', but this version reads '{CHECKPOINT_FORMAT}'"
                raise FileError(f"{path} has {formats}; restart the training", code="checkpoint-format")
            difference = first_difference(json.loads(json.dumps(self.job)), stored["job"])
            if difference:
                message = f"{path} belongs to another job: {difference}; restore that setting, or use another folder"
                raise FileError(message, code="checkpoint-of-another-job", difference=difference)
            if hashlib.sha256(packed).hexdigest() != stored["sha256"]:
                raise DamagedCheckpoint(f"{path} is damaged: its SHA-256 does not match", code="damaged-checkpoint")
            return tensor_bytes.load(packed), dict(stored["facts"])
        except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
            raise DamagedCheckpoint(f"{path} is not a readable checkpoint", code="damaged-checkpoint") from error

    def forget_before(self, step: int) -> None:
        """Delete the checkpoints of earlier steps."""
        for old in self.steps():
            if old < step:
                shutil.rmtree(self._path(old), ignore_errors=True)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}"


OMITTED_IF_DEFAULT = {"omitted_if_default": True}  # field metadata: older descriptions lack this field


def describe(value: Any) -> Any:
    """Return a setting as plain JSON values, so that two runs can be compared.

    >>> describe(WarmCosine())
    {'kind': 'WarmCosine', 'warm': 0.05, 'floor': 0.01}
    """
    if is_dataclass(value):
        given = [(entry, getattr(value, entry.name)) for entry in fields(value)]
        shown = [(e, one) for e, one in given if e.metadata != OMITTED_IF_DEFAULT or one != e.default]
        return {"kind": type(value).__name__, **{entry.name: describe(one) for entry, one in shown}}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, np.generic):
        return value.item()
    return [describe(entry) for entry in value] if isinstance(value, tuple) else value


def arrays_fingerprint(arrays: Iterable[NDArray[Any]]) -> str:
    """Return a 12-digit hexadecimal fingerprint of some arrays; it never leaves the party."""
    return tensor_file.arrays_digest(*arrays)[:12]
