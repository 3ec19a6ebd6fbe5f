"""Rungs under the clip and the noise that a job lays on what crosses the cut, with all parties in this process."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedsim.experiment.arrays import Arrays
from fedsim.experiment.choices import config_of
from fedsim.experiment.run import Trained, alone, outcome_of, primary_of, secondaries_of, trained
from fedsim.experiment.rung import Rung
from fedsim.party.protecting import noise_of
from fedsim.party.protection import Protection
from fedsim.privacy.keyed import SECRET_BYTES, subkey
from fedsim.protocol.guarded import Guarded
from fedsim.splitnn.below import start_secondary
from fedsim.training import Config, HeldList, SecondaryData, train_with
from fedsim.training.data import as_features


@dataclass(frozen=True, eq=False)
class Protected:
    """Trains rungs as the parties of a job would; ``secret`` stands for the secrets of all of them."""

    protection: Protection
    secret: bytes

    def trained(self, rung: Rung, arrays: Arrays) -> Trained:
        """One training; of whoever learns alone nothing crosses, and nothing is laid on it."""
        if alone(rung) or not lays_on_cut(self.protection):
            return trained(rung, arrays)
        config, split = config_of(rung, arrays.about["seed"], device="cpu"), arrays.split
        steps = config.epochs * config.steps_per_epoch(len(split.train))
        lists = [
            HeldList(data.neighbours, (self._held(data, config, steps),))
            for data in secondaries_of(rung, arrays)
            if data.neighbours
        ]
        return outcome_of(train_with(primary_of(rung, arrays), lists, split, config))

    def _held(self, data: SecondaryData, config: Config, steps: int) -> Guarded:
        terms, secret = self.protection, subkey(self.secret, f"comparison with seed {config.seed}", SECRET_BYTES)
        below = replace(config.below, clip=terms.activations.clip if terms.activations else None)
        party = start_secondary(data.name, as_features(data.features), below, total_steps=steps)
        return Guarded(party, answers=noise_of(terms.activations, secret), sends=noise_of(terms.gradients, secret))


def protection_words(protection: Protection) -> dict[str, str]:
    """What trainings under a protection are told apart by; nothing where there is none."""
    words = protection.model_dump_json(exclude_none=True)
    return {} if words == "{}" else {"protection": words}


def lays_on_cut(protection: Protection) -> bool:
    """Whether a job clips or lays noise on what crosses the cut."""
    return protection.activations is not None or protection.gradients is not None
