"""The section of a party file in which its owner says what a job must keep to."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, Strict, model_validator

from fedsim.party.job import MethodWord, WireWord
from fedsim.party.toml_file import RuleError, Section, real, whole
from fedsim.party.written import COLUMN_NAMES, PARTY_NAMES, Columns, Hashes, Names

HardeningWord = Literal["shuffle", "xor-fold", "balance", "bit-flip"]


class CutDemand(Section):
    """How well rows that cross the cut must be protected."""

    max_clip: Annotated[float | None, real(0, 1e6)] = Field(
        default=None, description="The longest a row may be; left out, any length will do.", examples=[1.0]
    )
    min_noise: Annotated[float, real(0, 1e6)] = Field(
        description="The least noise, as a multiple of the clip; a job without any is refused.", examples=[0.5]
    )


class AuditDemand(Section):
    """An audit of exactly this job that the owner has run on the own table, with nothing in it above a limit."""

    limit: Annotated[float, Field(ge=0, lt=1, title="a number from 0 to below 1")] = Field(
        description="The most that any attack by another party may gain over blind guessing about this one: 0 is "
        "nothing, 1 certainty. The report lies in the party's folder under audits, by the hash of the job.",
        examples=[0.3],
    )


class Policy(Section):
    """What the party demands of every job; what is left out it does not mind.

    ``max_new_records`` is the coordinator's: how many records it links per list after training, over all predictions.
    Noise does not protect against endless questions: near-copies of one record, each with noise of its own, average
    it away.
    """

    max_tau: Annotated[float | None, real(0, 1)] = Field(
        default=None, description="The largest tau this party takes; jobs without tau are refused.", examples=[0.05]
    )
    min_candidates: Annotated[int | None, whole(1, 1_000_000_000)] = Field(
        default=None,
        description="The fewest records of its own with which the party takes part; among few, each is easier to find.",
        examples=[1000],
    )
    columns: Columns | None = Field(
        default=None,
        title=COLUMN_NAMES,
        description="The only columns of the table that any job may use, for linking or learning.",
        examples=[["lat", "lon", "rent"]],
    )
    min_k: Annotated[int | None, whole(1, 10_000)] = Field(
        default=None, description="The smallest k this party takes: long lists tell less of each record.", examples=[10]
    )
    max_k: Annotated[int | None, whole(1, 10_000)] = Field(
        default=None, description="The largest k this party takes: long lists show more records.", examples=[50]
    )
    hardening: Annotated[tuple[HardeningWord, ...], Strict(False)] = Field(
        default=(), description="Steps of hardening that the filters must go through.", examples=[["balance"]]
    )
    max_epsilon_per_km: Annotated[float | None, real(0, 1e6)] = Field(
        default=None,
        description="Places must be blurred with at most this epsilon per kilometre: they move by 2000 / epsilon "
        "metres on average. Jobs that do not blur are refused.",
        examples=[10],
    )
    min_degree: Annotated[int | None, whole(1, 1_000_000)] = Field(
        default=None, description="Partners that fewer records would name must be named by none.", examples=[5]
    )
    min_dummies: Annotated[float | None, Field(gt=0, le=0.9, title="a share above 0 and up to 0.9")] = Field(
        default=None, description="The least share of links that point to a random candidate instead.", examples=[0.2]
    )
    hide_rows: bool = Field(
        default=False, description="Whether a job must keep the primary from seeing which partners repeat."
    )
    min_feature_noise: Annotated[float | None, real(0, 1e6)] = Field(
        default=None,
        description="The least noise on the features of secondaries, in deviations of each column.",
        examples=[2.0],
    )
    activations: CutDemand | None = Field(
        default=None, description="How well what secondaries send must be protected; left out, it need not be."
    )
    gradients: CutDemand | None = Field(
        default=None, description="How well what the primary sends back must be protected; left out, it need not be."
    )
    audit: AuditDemand | None = Field(
        default=None, description="The audit that must be on file before this party takes part; left out, none."
    )
    methods: Annotated[tuple[MethodWord, ...] | None, Strict(False)] = Field(
        default=None, description="The methods this party takes part in.", examples=[["fedsim"]]
    )
    wire: Annotated[tuple[WireWord, ...] | None, Strict(False)] = Field(
        default=None, description="The forms of numbers on the wire this party takes.", examples=[["float32"]]
    )
    max_epochs: Annotated[int | None, whole(1, 100_000)] = Field(
        default=None,
        description="The most epochs this party trains; a job that leaves their number to the preset is refused.",
        examples=[100],
    )
    max_new_records: Annotated[int, whole(0, 1_000_000_000)] = Field(
        default=100_000,
        description="The coordinator's alone: records it links per list after training, over all predictions. Endless "
        "near-copies of one record would average the noise away.",
    )
    max_studies: Annotated[int, whole(0, 1_000_000)] = Field(
        default=0,
        description="A secondary's alone: trainings beside the job's own in which it takes part, so that the primary "
        "can compare (`fedsim compare`). Each shows the primary more of the features, under the job's protections.",
        examples=[50],
    )
    primary: Names | None = Field(
        default=None, title=PARTY_NAMES, description="The primaries this party works with.", examples=[["city"]]
    )
    coordinator: Names | None = Field(
        default=None, title=PARTY_NAMES, description="The coordinators this party works with.", examples=[["notary"]]
    )
    secondaries: Names | None = Field(
        default=None,
        title=PARTY_NAMES,
        description="The other secondaries this party works with.",
        examples=[["schools"]],
    )
    approve: Hashes = Field(
        default=(),
        description="Jobs that need no `fedsim approve` any more, by the first 12 or more digits of their hash.",
        examples=[["0b1c2d3e4f5a"]],
    )

    @model_validator(mode="after")
    def _some_k(self) -> Self:
        if self.min_k is not None and self.max_k is not None and self.min_k > self.max_k:
            raise RuleError(f"min_k is {self.min_k} and max_k {self.max_k}; no k is both", "min_k")
        return self
