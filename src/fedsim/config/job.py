"""The job file: the settings that all parties agree on, its protection section and presets, and its hash."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, PlainValidator, model_validator

from fedsim.config.toml_file import (
    ConfigFile,
    ConfigSection,
    RuleError,
    parse_config,
    read_config_file,
    real_number,
    whole_number,
)
from fedsim.data.column_names import is_latitude_column, is_longitude_column, name_words
from fedsim.errors import SettingError
from fedsim.linkage.encoding.filters import NumericFilter
from fedsim.linkage.encoding.schema import Schema
from fedsim.protocol.messages import PARTY_NAME, Party, Role

# Protections that a job may lay over the noise on similarities, and the preset that combines them


# What the preset stands for; docs/privacy-results.md has the measurements behind every figure.
PRESET_FEATURES: Mapping[str, float] = {"noise": 4.0}
PRESET_GRADIENTS: Mapping[str, float] = {"clip": 1e-6, "noise": 500.0}
PRESET_TAU, PRESET_SIGMA = 0.05, 0.4
PRESET_EPSILON_PER_KM = 5.0
METRES_PER_KM = 1000.0


class Blur(ConfigSection):
    """Places moved at random before they are encoded (geo-indistinguishability)."""

    latitude: str = Field(description="The agreed identifier that is the latitude, in degrees.", examples=["lat"])
    longitude: str = Field(description="The agreed identifier that is the longitude, in degrees.", examples=["lon"])
    epsilon_per_km: Annotated[float, real_number(0, 1e6)] = Field(
        description="Odds between two places one kilometre apart grow at most by e to this, whatever is computed from "
        "the blurred place and however often; places move by 2000 / epsilon_per_km metres on average.",
        examples=[10],
    )

    @property
    def epsilon(self) -> float:
        """The same for one metre, as the mechanism takes it."""
        return self.epsilon_per_km / METRES_PER_KM


class CutTerms(ConfigSection):
    """Bounded length and noise for rows that cross the cut."""

    clip: Annotated[float, real_number(0, 1e6)] = Field(
        description="Rows longer than this are scaled down to it, so that noise can promise something.", examples=[1.0]
    )
    noise: Annotated[float, real_number(0, 1e6)] = Field(
        description="Standard deviation of the noise on every number, as a multiple of the clip.", examples=[0.5]
    )


class FeatureTerms(ConfigSection):
    """Noise on features before any network sees them."""

    noise: Annotated[float, real_number(0, 1e6)] = Field(
        description="Standard deviation of the noise on every number, as a multiple of its column's own; categories "
        "are replaced as often as leaves as little of them.",
        examples=[3.0],
    )


class Protection(ConfigSection):
    """What is laid on features, activations and gradients beside the noise on similarities."""

    preset: Literal["protected"] | None = Field(
        default=None,
        exclude=True,  # its settings stand in the job one by one, and so in its hash
        description="`protected` stands for the settings that our measurements recommend: noise on the "
        "features of secondaries, on gradients, on similarities and, where latitude and longitude link, blurred "
        "places. What the job says itself counts instead.",
        examples=["protected"],
    )

    features: FeatureTerms | None = Field(
        default=None,
        description="Noise on the features of secondaries, drawn once for a record: protects them from the primary, "
        "and does not wear out with the number of steps.",
    )
    activations: CutTerms | None = Field(
        default=None,
        description="Clip and noise on what secondaries send: protects their features from the primary.",
    )
    gradients: CutTerms | None = Field(
        default=None, description="Clip and noise on what the primary sends back: protects its labels."
    )

    @model_validator(mode="before")
    @classmethod
    def _spelt_out(cls, written: Any) -> Any:
        if isinstance(written, dict) and written.get("preset") == "protected":
            return {"features": dict(PRESET_FEATURES), "gradients": dict(PRESET_GRADIENTS), **written}
        return written


def preset_terms(places: tuple[str, str] | None, *, whole_distances: bool) -> dict[str, Any]:
    """What the preset says about one list whose identifiers hold these places, or none."""
    noise = {"tau": PRESET_TAU} if whole_distances else {"sigma": PRESET_SIGMA}
    if places is None:
        return noise
    return {**noise, "blur": Blur(latitude=places[0], longitude=places[1], epsilon_per_km=PRESET_EPSILON_PER_KM)}


def coordinate_columns(columns: Sequence[str]) -> tuple[str, str] | None:
    """The columns that are called latitude and longitude, where there is one of each; names that end so come first.

    >>> coordinate_columns(["homeLat", "homeLng", "area"]), coordinate_columns(["lat", "lon", "lat_error"])
    (('homeLat', 'homeLng'), ('lat', 'lon'))
    >>> coordinate_columns(["lat_start", "lon_start"]), coordinate_columns(["home_lat", "work_lat", "lon"])
    (('lat_start', 'lon_start'), None)
    """
    latitude, longitude = (_single_match(columns, says) for says in (is_latitude_column, is_longitude_column))
    return (latitude, longitude) if latitude and longitude else None


def _single_match(columns: Sequence[str], says: Callable[[str], bool]) -> str | None:
    said = [column for column in columns if says(column)]
    best = [column for column in said if says(name_words(column)[-1])] or said
    return best[0] if len(best) == 1 else None


# What all parties agree on: one file, the same everywhere, known by its hash


MethodWord = Literal["fedsim", "avgsim", "featuresim", "top1sim"]
WireWord = Literal["float32", "float16", "bfloat16"]
# Methods of experiments, and why real parties do not run them.
SIMULATION_ONLY_METHODS = {
    "exact": "it needs equal identifiers in the clear and exists in simulations only",
    "combine": "it puts all raw tables in one place and exists in simulations only",
    "solo": "it needs no partner; the primary trains it alone",
}
_HOST = r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
_ADDRESS = re.compile(rf"({_HOST}):([0-9]{{1,5}})")


def _check_method(word: Any) -> Any:
    if isinstance(word, str) and word in SIMULATION_ONLY_METHODS:
        raise SettingError(
            f"the method '{word}' is none for a job: {SIMULATION_ONLY_METHODS[word]}; choose fedsim, avgsim or another"
        )
    return word


def _check_address(text: str) -> str:
    port = check_listen_address(text).rpartition(":")[2]
    if int(port) == 0:
        raise SettingError(f"'{text}' has port 0, where nobody can be reached; give a port from 1 to 65535")
    return text


def check_listen_address(text: str) -> str:
    """The address, if one could listen there; port 0 stands for any free one.

    >>> check_listen_address("[::1]:7411")
    '[::1]:7411'
    """
    found = _ADDRESS.fullmatch(text)
    if not found or int(found.group(3)) > 65535:
        raise SettingError(f"'{text[:60]}' is no address; give host and port such as 127.0.0.1:7411")
    return text


def _parse_schema(described: Any) -> Schema:
    return described if isinstance(described, Schema) else Schema.from_dict(_dates_to_text(described))


def _dates_to_text(value: Any) -> Any:
    """TOML has dates of its own, the schema wants them as text."""
    if isinstance(value, dict):
        return {key: _dates_to_text(inside) for key, inside in value.items()}
    if isinstance(value, list):
        return [_dates_to_text(inside) for inside in value]
    return value.isoformat() if type(value) is date else value


PARTY_NAME_RULE = "up to 40 small letters, digits and '-', as in a host name"
PartyName = Annotated[str, Field(pattern=f"^{PARTY_NAME.pattern}$", title=PARTY_NAME_RULE)]
Address = Annotated[str, AfterValidator(_check_address), Field(title="host and port such as 127.0.0.1:7411")]
MethodName = Annotated[MethodWord, BeforeValidator(_check_method)]
AgreedSchema = Annotated[Schema, PlainValidator(_parse_schema), PlainSerializer(Schema.to_dict)]


class PartyAddress(ConfigSection):
    """A party that others dial."""

    name: PartyName = Field(
        description="The party's name; its own file and its certificate bear the same.", examples=["notary"]
    )
    address: Address = Field(
        description="Where the other parties reach it. Where it listens at another address, behind a router for "
        "instance, its own file says so under network.listen.",
        examples=["127.0.0.1:7411"],
    )


class TaskSettings(ConfigSection):
    """What is learnt, and how records are split; ``group`` keeps equal identifiers on one side."""

    kind: Literal["regression", "classification"] = Field(
        description="Whether the label is a quantity, such as a price, or one of several classes.",
        examples=["regression"],
    )
    split: Literal["random", "group"] = Field(
        default="random",
        description="How the primary's records are drawn 7:1:2 for training, validation and test. `group` keeps "
        "records with equal identifiers on one side: the honest test where many share a place, and the harder one.",
    )


class TrainingSettings(ConfigSection):
    """How the network is trained; what is left out is as the preset has it."""

    preset: Literal["modern", "paper"] = Field(
        default="modern",
        description="Networks, optimiser and sizes: `modern` did best in our experiments, `paper` repeats the paper.",
    )
    method: MethodName = Field(
        default="fedsim",
        description="How the partners of a record are used: `fedsim` learns what each similarity is worth, `avgsim` "
        "takes the mean over all partners, `featuresim` takes the similarity as one more feature, `top1sim` takes the "
        "most similar partner alone.",
    )
    epochs: Annotated[int | None, whole_number(1, 100_000)] = Field(
        default=None,
        description="How often training goes through all records; left out, 60 by `modern` and 100 by `paper`.",
        examples=[60],
    )
    batch_size: Annotated[int | None, whole_number(1, 1_000_000)] = Field(
        default=None,
        description="Records per step; left out, 512 by `modern` and 128 by `paper`. Larger ones need fewer messages.",
        examples=[512],
    )
    learning_rate: Annotated[float | None, real_number(0, 100)] = Field(
        default=None, description="Size of a step; left out, that of the preset's optimiser.", examples=[0.002]
    )
    patience: Annotated[int | None, whole_number(1, 100_000)] = Field(
        default=None,
        description="Epochs without a better one, by the validation records, after which training ends; left out, all "
        "epochs run. The best epoch is kept in any case.",
        examples=[10],
    )
    threads: Annotated[int, whole_number(1, 1024)] = Field(
        default=1,
        description="Processor threads for each party's networks; the last digits of the weights depend on it.",
    )
    checkpoint_steps: Annotated[int, whole_number(1, 1_000_000_000)] = Field(
        default=200,
        description="Steps between two checkpoints, from which killed parties go on; each costs disk and a moment.",
    )
    wire: WireWord = Field(
        default="float32",
        description="How activations and gradients are written on the wire: float16 and bfloat16 halve the bytes and "
        "round the numbers.",
    )


class NetworkSettings(ConfigSection):
    """How long a party waits for a missing peer."""

    wait_seconds: Annotated[int, whole_number(1, 604_800)] = Field(
        default=600, description="Seconds after which a party gives up a peer that is missing."
    )


class SecondaryTerms(ConfigSection):
    """How one secondary is linked with the primary; neither ``tau`` nor ``sigma``: no noise."""

    k: Annotated[int, whole_number(1, 10_000)] = Field(
        description="Partners per record of the primary; at most as many as the secondary has records. More partners "
        "tell more and cost more bytes.",
        examples=[20],
    )
    metric: Literal["hamming", "dice"] = Field(
        default="hamming",
        description="How filters are compared: `hamming` counts the bits that differ, `dice` the share of ones that "
        "two filters have in common.",
    )
    tau: Annotated[float | None, real_number(0, 1)] = Field(
        default=None,
        description="Noise on the similarities, as much as keeps the chance of the paper's greedy attack to guess a "
        "partner's filter from one similarity below this; smaller means more noise. Only with the metric hamming; left "
        "out, as sigma is, there is no noise.",
        examples=[0.05],
    )
    sigma: Annotated[float | None, real_number(0, 1e6)] = Field(
        default=None,
        description="Noise on the similarities by its standard deviation, where similarities have the deviation 1; "
        "instead of tau, for any metric.",
        examples=[0.4],
    )
    blur: Blur | None = Field(
        default=None,
        description="Moves places at random before they are encoded, at both parties: a guarantee that does not wear "
        "out with the number of links.",
    )
    min_degree: Annotated[int, whole_number(1, 1_000_000)] = Field(
        default=1, description="Candidates that fewer training records would name are named by none."
    )
    dummies: Annotated[float, Field(ge=0, le=0.9, title="a share from 0 to 0.9")] = Field(
        default=0.0, description="Share of links that point to a random candidate instead."
    )
    hide_rows: bool = Field(
        default=False,
        description="The primary asks by its own records and cannot tell which partners of unlike records repeat; "
        "needs noise on activations, and sends every partner of every record: K times the bytes.",
    )
    encoding: AgreedSchema = Field(
        alias="schema",
        title="a schema with version and fields",
        description="Which columns link, and how they become filters; both parties encode by it, with the same key.",
    )

    @model_validator(mode="after")
    def _one_noise(self) -> Self:
        if self.tau is not None and self.sigma is not None:
            raise RuleError("both tau and sigma are given; each alone says how much noise there is, keep one", "sigma")
        if self.tau is not None and self.metric != "hamming":
            raise RuleError(
                f"tau bounds attacks on hamming distances only, the metric is {self.metric}; use sigma or hamming",
                "tau",
            )
        for column in (self.blur.latitude, self.blur.longitude) if self.blur else ():
            if column not in self.encoding.columns:
                raise RuleError(f"'{column}' is no identifier of the schema; blur what links", "blur")
        return self


def _apply_preset(terms: SecondaryTerms) -> SecondaryTerms:
    """With what the preset recommends for a list, where the job says nothing else."""
    numeric = [field.column for field in terms.encoding.fields if isinstance(field.encoding, NumericFilter)]
    wanted = preset_terms(coordinate_columns(numeric), whole_distances=terms.metric == "hamming")
    given = terms.model_fields_set | ({"tau", "sigma"} if terms.model_fields_set & {"tau", "sigma"} else set())
    return terms.model_copy(update={name: value for name, value in wanted.items() if name not in given})


def _sort_by_name(secondaries: dict[str, SecondaryTerms]) -> dict[str, SecondaryTerms]:
    """By name: the hash does not see the order of the file, so no party may."""
    for name in secondaries:
        if not PARTY_NAME.fullmatch(name):
            raise RuleError(f"a secondary's name is {PARTY_NAME_RULE}; rename it", name)
    return dict(sorted(secondaries.items()))


class Job(ConfigFile):
    """A job as its file says it, defaults and presets spelt out; the secondaries stand in the order of their names."""

    name: PartyName = Field(description="The job's name, for logs and for the folders of its runs.", examples=["flats"])
    seed: Annotated[int, whole_number(0, 2**63 - 1)] = Field(
        default=0,
        description="Where chance starts that splits records and begins networks: equal seeds give equal weights. The "
        "noise that protects does not come from it.",
    )
    coordinator: PartyAddress = Field(
        description="The party that compares encoded identifiers and finds the partners; it has neither table nor key."
    )
    primary: PartyAddress = Field(description="The party with the label; it leads the training and keeps the model.")
    task: TaskSettings = Field(description="What is learnt, and how records are split.")
    training: TrainingSettings = Field(
        default=TrainingSettings(),
        description="How the networks are trained; what is left out is as the preset has it.",
    )
    network: NetworkSettings = Field(
        default=NetworkSettings(), description="How long a party waits for a missing peer."
    )
    protection: Protection = Field(
        default=Protection(),
        description="A preset for the whole job, or clip and noise on what crosses the cut; left out, there is none.",
    )
    secondaries: Annotated[
        dict[str, SecondaryTerms],
        Field(
            min_length=1,
            title="a section [secondaries.NAME] for each",
            description="The parties whose records are the partners, each under its name, and how each is linked.",
        ),
        AfterValidator(_sort_by_name),
    ]

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [party.name for party in self.parties]
        for name in names:
            if names.count(name) > 1:
                raise RuleError(f"two parties are called '{name}'; give every party a name of its own", "secondaries")
        hiding = [name for name, terms in self.secondaries.items() if terms.hide_rows]
        if hiding and self.protection.activations is None:
            raise RuleError(
                "rows cannot be hidden without noise on activations, for equal rows would look equal; add "
                "protection.activations",
                "secondaries",
                hiding[0],
                "hide_rows",
            )
        if self.coordinator.address == self.primary.address:
            raise RuleError("coordinator and primary have the same address; give each its own port", "primary")
        return self

    @model_validator(mode="after")
    def _spelt_out(self) -> Self:
        """Every list under the settings of the preset, where the job asks for one."""
        if self.protection.preset is None:
            return self
        lists = {name: _apply_preset(terms) for name, terms in self.secondaries.items()}
        return self.model_copy(update={"secondaries": lists})

    @classmethod
    def from_dict(cls, described: Mapping[str, Any]) -> Job:
        """The job that :meth:`described` described."""
        return parse_config(cls, described, "the job")

    def described(self) -> dict[str, Any]:
        """Every setting in types that JSON has."""
        return self.model_dump(mode="json", by_alias=True)

    @property
    def hash(self) -> str:
        """64 hexadecimal digits that stand for every setting, however the file is laid out."""
        text = json.dumps(self.described(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def short_hash(self) -> str:
        """The first twelve digits, for names of files and for people."""
        return self.hash[:12]

    @property
    def parties(self) -> list[Party]:
        """All who take part: coordinator, primary, then the secondaries by name."""
        first = [Party(Role.COORDINATOR, self.coordinator.name), Party(Role.PRIMARY, self.primary.name)]
        return first + [Party(Role.SECONDARY, name) for name in self.secondaries]

    def address_of(self, party: Party) -> str:
        """Where the others reach a party."""
        known = {Role.COORDINATOR: self.coordinator, Role.PRIMARY: self.primary}
        if party not in self.parties or party.role not in known:
            raise SettingError(
                f"job '{self.name}' has no address for {party}; only coordinator and primary are dialled"
            )
        return known[party.role].address


def read_job(path: Path) -> Job:
    """The job in a file."""
    return read_config_file(Job, path)
