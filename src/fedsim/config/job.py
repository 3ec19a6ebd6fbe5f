"""The job file: the settings that all parties agree on, the protection preset, and the job's hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, create_model, model_validator

from fedsim.config.job_kind import BY_COORDINATOR, DIRECT, JobKind
from fedsim.config.toml_file import (
    ConfigFile,
    ConfigSection,
    OneOf,
    RuleError,
    real_number,
    setting,
    whole_number,
    with_unused,
    without_unused,
)
from fedsim.data.column_names import is_latitude_column, is_longitude_column, name_words
from fedsim.errors import SettingError
from fedsim.hyperparameters import TrainingSettings, hyperparameters
from fedsim.linkage.direct.groups import ShareLevel
from fedsim.linkage.direct.token_schema import TokenSchema
from fedsim.linkage.encoding.column_encodings import NumericFilter
from fedsim.linkage.encoding.schema import Schema
from fedsim.protocol.addresses import RELAY_SCHEME, split_address
from fedsim.protocol.messages import PARTY_NAME, Party, Role
from fedsim.registry import METHODS, METRICS, PRESETS, SHARES, SPLITS, WIRE_FORMATS

if TYPE_CHECKING:
    from fedsim.linkage.private_linkage import LinkageConfig

PRESET_EPSILON_PER_KM = 5.0  # of the preset `protected`; docs/privacy-results.md has the measurements
DEFAULT_EMBEDDING = "random"
DEFAULT_RETENTION_DAYS = 90
DEFAULT_MAX_TOKENS = 1_000_000
FIRST_HYPERPARAMETERS = ("epochs", "batch_size", "learning_rate", "patience")  # of version 0.1
# Settings that earlier versions did not have, with their defaults: they count for the hash only where they are used.
LATER_SETTINGS: Mapping[tuple[str, str], str | None] = {
    ("task", "label_scale"): "linear",
    **{("training", name): None for name in hyperparameters() if name not in FIRST_HYPERPARAMETERS},
    ("protection", "embedding"): None,
    ("protection", "retention_days"): None,
}
DIRECT_TERMS = {"k", "tokens", "max_tokens", "share", "m"}  # of a secondary in a job without a coordinator
METRES_PER_KM = 1000.0

PARTY_NAME_RULE = "up to 40 lower-case letters, digits and '-', as in a host name"


def _texts(settings: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the texts in nested settings, names of settings included, each with its place."""
    if isinstance(settings, str):
        yield path, settings
    elif isinstance(settings, Mapping):
        for name, inner in settings.items():
            yield path, str(name)
            yield from _texts(inner, (*path, str(name)))
    elif isinstance(settings, list | tuple):
        for inner in settings:
            yield from _texts(inner, path)


def _check_peer_address(text: str) -> str:
    place, mark, label = text.removeprefix(RELAY_SCHEME).partition("/")
    if mark and not (text.startswith(RELAY_SCHEME) and PARTY_NAME.fullmatch(label)):
        message = f"'{text[:80]}' is not a valid address; write host:port, or relay://host:port/label with a label of"
        raise SettingError(f"{message} {PARTY_NAME_RULE}", code="invalid-address")
    if split_address(place)[1] == 0:
        raise SettingError(f"'{text}' has port 0; give a port from 1 to 65535", code="invalid-address")
    return text


def _dates_to_text(value: Any) -> Any:
    """Convert TOML dates to ISO text, which the schema expects."""
    if isinstance(value, dict):
        return {key: _dates_to_text(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_dates_to_text(inner) for inner in value]
    return value.isoformat() if type(value) is date else value


PartyName = Annotated[str, Field(pattern=f"^{PARTY_NAME.pattern}$", title=PARTY_NAME_RULE)]
Address = Annotated[str, AfterValidator(_check_peer_address), Field(title="host and port, such as 127.0.0.1:7411")]
MethodName = Annotated[str, OneOf(METHODS)]
WireFormat = Annotated[str, OneOf(WIRE_FORMATS)]
EmbeddingName = Literal["random", "features", "autoencoder"]
AgreedSchema = Annotated[
    Schema,
    PlainValidator(lambda value: value if isinstance(value, Schema) else Schema.from_dict(_dates_to_text(value))),
    PlainSerializer(Schema.to_dict),
]
AgreedTokens = Annotated[
    TokenSchema,
    PlainValidator(lambda value: value if isinstance(value, TokenSchema) else TokenSchema.from_dict({"fields": value})),
    PlainSerializer(lambda schema: schema.to_dict()["fields"]),
]


class Blur(ConfigSection):
    """Random displacement of coordinates before they are encoded (geo-indistinguishability)."""

    latitude: str = setting(example="lat")
    """The agreed identifier with the latitude in degrees."""
    longitude: str = setting(example="lon")
    """The agreed identifier with the longitude in degrees."""
    epsilon_per_km: Annotated[float, real_number(0, 1e6)] = setting(example=10)
    """Privacy budget per kilometre: two places one kilometre apart stay indistinguishable up to a factor of e to this
    number, whatever is computed from the displaced coordinates. The average displacement is 2000 / epsilon_per_km
    metres; smaller means more privacy."""

    @property
    def epsilon(self) -> float:
        """The privacy budget per metre, as the mechanism expects it."""
        return self.epsilon_per_km / METRES_PER_KM


class FeatureTerms(ConfigSection):
    """What happens to features before they enter a network."""

    noise: Annotated[float, real_number(0, 1e6)] = setting(example=3.0)
    """Standard deviation of the noise added to every number, as a multiple of the column's standard deviation.
    Categories are replaced at random, to the same effect."""


class Protection(ConfigSection):
    """Sealed labels and noise on features, in addition to blur and the noise on similarities."""

    preset: Literal["protected"] | None = setting(None, example="protected", exclude=True)
    """`protected` is a name for `share = "averages"` of every secondary in a job without a coordinator; with one, it
    seals the labels and, where latitude and longitude link, displaces coordinates before they are
    encoded (epsilon 5 per kilometre). Settings given explicitly take precedence."""

    features: FeatureTerms | None = None
    """Noise on the features of secondaries, drawn once per record. Protects the features from the primary, and does not
    weaken with the number of training steps."""
    gradients: Literal["none"] | None = setting(None, example="none")
    """The gradients that the primary sends, by default at every step. `"none"` seals the labels: each secondary sends
    the activations of every linked row once, computed without labels (see `embedding`), and never gets a gradient or
    anything else that depends on a label. The primary then trains alone."""
    embedding: EmbeddingName | None = setting(None, example="random")
    """How a secondary computes the embedding of every linked row that it sends once, without labels: instead of
    activations under sealed labels (default there: `random`), and beside them for the trees of the method `stacked`
    (default there: none is sent, and the trees see the primary's own columns only). `random`: random features of secret
    weights. `features`: ranks of numbers and one column per category, which keeps most information and hides no
    feature. `autoencoder`: a network that the secondary trains to fill in hidden columns of its own table."""
    retention_days: Annotated[int | None, whole_number(1, 36_500)] = setting(None, example=30)
    """Under sealed labels: days for which the primary may store the activations that a secondary sent; then it deletes
    them, and predictions need the secondary again. `fedsim privacy delete` deletes them earlier. Default: 90."""

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, settings: Any) -> Any:
        if isinstance(settings, dict) and settings.get("preset") == "protected":
            return {"gradients": "none", **settings}
        return settings

    @model_validator(mode="after")
    def _check_sealed_settings(self) -> Self:
        if self.retention_days is not None and not self.sealed:
            message = f"retention_days '{self.retention_days}' has an effect under sealed labels only"
            raise RuleError(f"{message}; add gradients = 'none'", "retention_days", code="needs-sealed-labels")
        return self

    @property
    def sealed(self) -> bool:
        """Whether labels are sealed: no gradient leaves the primary."""
        return self.gradients == "none"

    @property
    def embedding_name(self) -> str:
        """The embedding that secondaries send, if they send one."""
        return self.embedding or DEFAULT_EMBEDDING

    @property
    def retention(self) -> timedelta:
        """How long the primary may store activations under sealed labels."""
        return timedelta(days=self.retention_days or DEFAULT_RETENTION_DAYS)


class PartyAddress(ConfigSection):
    """A party that other parties connect to."""

    name: PartyName = setting(example="notary")
    """Name of the party; its party file and its certificate have the same name."""
    address: Address = setting(example="127.0.0.1:7411")
    """Address at which the other parties reach it. If it listens at a different address, for example behind a router,
    set network.listen in its party file. `relay://host:port` if it accepts no connections and all parties meet at a
    relay (`fedsim relay`); `relay://host:port/label` tells apart jobs that the party runs at the same time."""


class TaskSettings(ConfigSection):
    """What the model predicts, and how records are split."""

    kind: Literal["regression", "classification"] = setting(example="regression")
    """Whether the label is a number, such as a price, or one of several classes."""
    split: Annotated[str, OneOf(SPLITS)] = "random"
    """How the primary's records are split 7:1:2 into training, validation and test. `group` keeps records with equal
    identifiers in the same part: a harder and more honest test if many records share a place. `time` trains on the
    oldest records and tests on the newest. `column` keeps records with equal cells in the same part; cells that say
    train, validation and test name the part. The primary names the column in its party file (label.split_by). The trees
    of method `stacked` are selected on the validation records, then trained on these as well."""
    label_scale: Literal["linear", "log"] = "linear"
    """`log` learns the logarithm of a label that is always positive, so that relative errors count. Predictions and
    metrics are in the label's own unit; the metric rmse_log chooses the best epoch."""

    @model_validator(mode="after")
    def _check_label_scale(self) -> Self:
        if self.label_scale == "log" and self.kind != "regression":
            message = "only a number has a logarithm, but the task is a classification; remove the setting"
            raise RuleError(message, "label_scale", code="log-of-class")
        return self


def _hyperparameter_fields() -> dict[str, Any]:
    """Return the fields of the hyper-parameters, which :class:`fedsim.hyperparameters.TrainingSettings` declares."""
    declared = {}
    for name, rule in hyperparameters().items():
        if rule.above:
            allowed = real_number(rule.low, rule.high)
        elif rule.kind is int:
            allowed = whole_number(int(rule.low), int(rule.high))
        else:
            allowed = Field(ge=rule.low, le=rule.high, title=f"a share from {rule.low:g} to {rule.high:g}")
        value = setting(None, example=rule.example, description=rule.meaning)
        declared[name] = (Annotated[rule.kind | None, allowed], value)
    return declared


class _PresetAndMethod(ConfigSection):
    preset: Annotated[str, OneOf(PRESETS)] = setting(
        "modern",
        description=(
            "Network architecture, optimiser and default sizes. `modern` encodes latitude, longitude and other numeric "
            "identifiers among the features by periodic embeddings, all other numbers by piecewise-linear ones; "
            "`paper` leaves numbers as they are."
        ),
    )
    method: MethodName = setting("fedsim", description="How the partners of a record are used.")


_Hyperparameters: Any = create_model("_Hyperparameters", __base__=_PresetAndMethod, **_hyperparameter_fields())


class TrainingSection(_Hyperparameters):  # type: ignore[misc]
    """How the networks are trained."""

    threads: Annotated[int, whole_number(1, 1024)] = 1
    """CPU threads for each party's networks. The last digits of the weights depend on this number."""
    checkpoint_steps: Annotated[int, whole_number(1, 1_000_000_000)] = 200
    """Training steps between two checkpoints, from which an interrupted run resumes."""
    wire: WireFormat = "float32"
    """Number format of activations and gradients in messages. `float16` and `bfloat16` halve the traffic and round the
    numbers; `int8`, whole multiples of a scale per row, takes a quarter."""

    @property
    def settings(self) -> TrainingSettings:
        """The preset and the hyper-parameters."""
        return TrainingSettings.of(self)

    @model_validator(mode="after")
    def _check_party_dropout(self) -> Self:
        able = [name for name in METHODS.names(in_jobs=True) if METHODS.detail(name, "party_dropout")]
        if self.party_dropout and self.method not in able:
            message = f"method '{self.method}' needs every secondary; remove it, or choose {' or '.join(able)}"
            raise RuleError(message, "party_dropout", code="needs-every-secondary")
        return self


class NetworkSettings(ConfigSection):
    """How long parties wait for each other."""

    wait_seconds: Annotated[int, whole_number(1, 604_800)] = 600
    """Seconds after which a party stops waiting for a missing party."""


class SecondaryTerms(ConfigSection):
    """How a secondary is linked with the primary: by filters at the coordinator, or directly by ``tokens``.

    Without ``tau`` and ``sigma`` the similarities of filters have no noise.
    """

    k: Annotated[int, whole_number(1, 10_000)] = setting(example=20)
    """Number of partners per record of the primary; at most the number of records of the secondary. More partners add
    information and traffic."""
    metric: Annotated[str, OneOf(METRICS)] = "hamming"
    """Distance between two encoded identifiers. Default: `position` if the schema encodes positions, else `hamming`."""
    tau: Annotated[float | None, real_number(0, 1)] = setting(None, example=0.05)
    """Adds enough noise to the similarities to keep the success rate of the paper's greedy attack, which guesses a
    partner's filter from one similarity, below this number; smaller means more noise. With the metric `hamming` the
    bound assumes normally distributed similarities; with `dice` it holds for the average link. An attacker who knows
    which distances are frequent guesses more: `fedsim privacy table --job` prints how often. Without `tau` and `sigma`
    there is no noise."""
    sigma: Annotated[float | None, real_number(0, 1e6)] = setting(None, example=0.4)
    """Standard deviation of the noise on the similarities, which are scaled to standard deviation 1. An alternative to
    `tau` that works with every metric and every table."""
    blur: Blur | None = None
    """Displaces coordinates at random before both parties encode them. The guarantee does not weaken with the number of
    links."""
    filters: AgreedSchema | None = setting(None, alias="schema", title="a schema with version and fields")
    """The identifier columns and how they are encoded for the coordinator. Both parties use the same schema and key."""
    tokens: AgreedTokens | None = setting(None, title="a list of fields, each with columns and kind")
    """The identifier columns and how they become tokens, in a job without a coordinator: similar records have tokens in
    common. Nothing in it is secret, and no key is shared."""
    max_tokens: Annotated[int, whole_number(1, 10**12)] = setting(DEFAULT_MAX_TOKENS, example=200_000)
    """With `tokens`: how many of them the primary may have evaluated by this secondary, over all jobs and predictions,
    unless the policy of the secondary says otherwise. Every guess of an identifier costs at least one, so a number near
    what the primary's records need (about 130 per name, 10 to 60 per place, number or date) is safest."""
    share: Annotated[str | None, OneOf(SHARES)] = setting(None, example="averages")
    """What the primary may have of this secondary's records. `averages`: one average of at least `m` records for every
    cell of a place, bin of a number or date, or code; no record by itself, and nothing finer than the smallest cell.
    `rows`: one vector per record that it reaches, the average of at least `m` records with similar features. `split`:
    activations and gradients, which reveal labels; needs a coordinator. Default: `rows`, or with a coordinator what
    `protection.gradients` says. A table keeps its level, `m`, cells and columns for all jobs."""
    m: Annotated[int | None, whole_number(1, 1_000_000)] = setting(None, example=10)
    """With `tokens`: the least number of records behind every value that the primary gets. Default: 10 for `averages`,
    5 for `rows`. With 1, the primary can compute the chosen columns of every record that it reaches."""

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if (self.filters is None) == (self.tokens is None):
            message = "give tokens, for a job without a coordinator, or a schema of filters, for one with a coordinator"
            raise RuleError(message, "tokens", code="tokens-or-schema")
        kept = DIRECT_TERMS if self.tokens else {*type(self).model_fields} - {"max_tokens", "m"}
        for name in type(self).model_fields:
            if name in self.model_fields_set - kept:
                what = "tokens" if self.tokens else "a schema of filters"
                raise RuleError(f"'{name}' has no effect with {what}; remove it", name, code="setting-not-applicable")
        return self

    @model_validator(mode="after")
    def _choose_share(self) -> Self:
        if self.tokens is None:
            return self
        share = self.share or "rows"
        if not SHARES.detail(share, "direct"):
            message = f"share '{share}' sends activations and gradients, which needs a coordinator"
            raise RuleError(f"{message}; choose averages or rows", "share", code="needs-coordinator")
        level: ShareLevel = SHARES[share]
        level.check(self.tokens)
        m = level.M if self.m is None else self.m
        if m < level.LEAST:
            message = (
                f"m = {m} shows single records, but share '{share}' shows none; choose m of at least {level.LEAST}"
            )
            raise RuleError(message, "m", code="m-too-small")
        return self.model_copy(update={"share": share, "m": m})

    @model_validator(mode="after")
    def _choose_metric(self) -> Self:
        if self.filters is None or "metric" in self.model_fields_set or self.metric == self.encoding.metric:
            return self
        return self.model_copy(update={"metric": self.encoding.metric})

    @model_validator(mode="after")
    def _check_noise_and_blur(self) -> Self:
        if self.filters is None:
            return self
        if self.tau is not None and self.sigma is not None:
            raise RuleError("both tau and sigma are given; remove one of them", "sigma", code="tau-and-sigma")
        if self.tau is not None and not METRICS.detail(self.metric, "tau"):
            message = f"tau requires the metric hamming or dice, but the metric is {self.metric}; use sigma instead"
            raise RuleError(message, "tau", code="tau-needs-steps")
        if bool(METRICS.detail(self.metric, "positions")) != self.encoding.positions:
            message = f"metric {self.metric} cannot compare this schema; remove the setting, or change the encodings"
            raise RuleError(message, "metric", code="metric-unlike-schema")
        for column in (self.blur.latitude, self.blur.longitude) if self.blur else ():
            if column not in self.encoding.columns:
                message = f"'{column}' is not an identifier of the schema; name an identifier"
                raise RuleError(message, "blur", code="unknown-column")
        return self

    @property
    def encoding(self) -> Schema:
        """The schema of filters; a direct job has none."""
        if self.filters is None:
            message = "records of this job are linked directly by tokens; this needs the filters of a coordinator's job"
            raise SettingError(message, code="no-filters")
        return self.filters

    @property
    def token_schema(self) -> TokenSchema:
        """The schema of tokens; a job with a coordinator has none."""
        if self.tokens is None:
            raise SettingError("this secondary is linked by filters, so there are no tokens", code="no-tokens")
        return self.tokens

    @property
    def level(self) -> ShareLevel:
        """What the encrypted table lists; a job with a coordinator has none."""
        found: ShareLevel = SHARES[self.share or "rows"]
        return found

    @property
    def columns(self) -> tuple[str, ...]:
        """The agreed names of the identifier columns."""
        return tuple(self.encoding.columns if self.tokens is None else self.tokens.columns)

    @property
    def n_similarities(self) -> int:
        """How many similarities the primary gets for every pair."""
        return 1 if self.tokens is None else len(self.tokens.fields)

    @property
    def linkage(self) -> LinkageConfig:
        """The terms as the coordinator links by them and both parties check what it delivers."""
        from fedsim.linkage.private_linkage import LinkageConfig  # noqa: PLC0415 - commands that only read start faster

        return LinkageConfig(metric=self.metric, k=self.k, tau=self.tau, sigma=self.sigma)

    def with_protection_preset(self) -> SecondaryTerms:
        """Return the terms with the preset's blur, where places link and the job does not set it."""
        coordinates = None if self.filters is None else place_columns(self.filters)
        if coordinates is None or "blur" in self.model_fields_set:
            return self
        latitude, longitude = coordinates
        blur = Blur(latitude=latitude, longitude=longitude, epsilon_per_km=PRESET_EPSILON_PER_KM)
        return self.model_copy(update={"blur": blur})


def place_columns(schema: Schema) -> tuple[str, str] | None:
    """Return the columns of latitude and longitude: those of the only place, or numeric filters named so."""
    places = [(field.column, field.longitude) for field in schema.fields if field.longitude is not None]
    if places:
        return places[0] if len(places) == 1 else None
    return coordinate_columns([field.column for field in schema.fields if isinstance(field.encoding, NumericFilter)])


def coordinate_columns(columns: Sequence[str]) -> tuple[str, str] | None:
    """Return the columns named latitude and longitude if there is one of each; names that end so take precedence.

    >>> coordinate_columns(["homeLat", "homeLng", "area"]), coordinate_columns(["lat", "lon", "lat_error"])
    (('homeLat', 'homeLng'), ('lat', 'lon'))
    >>> coordinate_columns(["lat_start", "lon_start"]), coordinate_columns(["home_lat", "work_lat", "lon"])
    (('lat_start', 'lon_start'), None)
    """

    def single_match(matches: Callable[[str], bool]) -> str | None:
        found = [column for column in columns if matches(column)]
        best = [column for column in found if matches(name_words(column)[-1])] or found
        return best[0] if len(best) == 1 else None

    latitude, longitude = single_match(is_latitude_column), single_match(is_longitude_column)
    return (latitude, longitude) if latitude and longitude else None


def _sort_by_name(secondaries: dict[str, SecondaryTerms]) -> dict[str, SecondaryTerms]:
    """Sort by name: the hash does not depend on the order in the file, so nothing else may."""
    for name in secondaries:
        if not PARTY_NAME.fullmatch(name):
            raise RuleError(f"the name of a secondary has {PARTY_NAME_RULE}; rename it", name, code="invalid-name")
    return dict(sorted(secondaries.items()))


class Job(ConfigFile):
    """A job file with defaults and presets filled in; secondaries are sorted by name.

    Examples
    --------
    >>> fields = [{"column": "name", "encoding": {"kind": "string"}}]
    >>> job = Job.from_dict({
    ...     "name": "flats",
    ...     "coordinator": {"name": "notary", "address": "127.0.0.1:7411"},
    ...     "primary": {"name": "city", "address": "127.0.0.1:7412"},
    ...     "task": {"kind": "regression"},
    ...     "secondaries": {"rentals": {"k": 20, "schema": {"version": 1, "fields": fields}}},
    ... })
    >>> job.short_hash, [party.name for party in job.parties]
    ('b07d5f76a83b', ['notary', 'city', 'rentals'])
    """

    name: PartyName = setting(example="flats")
    """Name of the job; used in log messages and for the folders of its runs."""
    seed: Annotated[int, whole_number(0, 2**63 - 1)] = 0
    """Random seed for the split of the records and the initial weights: equal seeds give equal weights. Privacy noise
    does not depend on it."""
    coordinator: PartyAddress | None = None
    """The party that compares encoded identifiers and finds partners; it has no table and no key. A job without one is
    direct: every secondary has `tokens`, labels are sealed, and no party shares a key."""
    primary: PartyAddress
    """The party with the label; it runs the training and keeps the model."""
    task: TaskSettings
    training: TrainingSection = TrainingSection()
    """How the networks are trained; unset settings come from the preset."""
    network: NetworkSettings = NetworkSettings()
    protection: Protection = Protection()
    """Noise on features, activations and gradients, or a preset for the whole job. Default: none."""
    secondaries: Annotated[
        dict[str, SecondaryTerms],
        Field(min_length=1, title="a section [secondaries.NAME] for each"),
        AfterValidator(_sort_by_name),
    ]
    """The parties whose records are the partners, by name, and how each is linked."""

    @model_validator(mode="before")
    @classmethod
    def _check_text(cls, settings: Any) -> Any:
        """Refuse text that shows something else than it says: an owner who approves a job reads it in a terminal."""
        for path, text in _texts(settings):
            if not text.isprintable():
                fault = f"'{text[:60]}' has a line break or a character that cannot be printed"
                hint = "write a column as FedSim shows it, with a space or a question mark in its place"
                raise RuleError(f"{fault}; {hint}", *path, code="unprintable-text")
        return settings

    @model_validator(mode="before")
    @classmethod
    def _apply_share_preset(cls, settings: Any) -> Any:
        """Share averages where the preset says so and a secondary does not say otherwise."""
        try:
            protected = settings["protection"]["preset"] == "protected" and not settings.get("coordinator")
            terms = {name: {"share": "averages", **of} for name, of in settings["secondaries"].items()}
        except (LookupError, TypeError, AttributeError):  # the fields report what is wrong
            return settings
        return {**settings, "secondaries": terms} if protected else settings

    @model_validator(mode="after")
    def _check_parties(self) -> Self:
        names = [party.name for party in self.parties]
        for name in names:
            if names.count(name) > 1:
                message = f"two parties are named '{name}'; give each party its own name"
                raise RuleError(message, "secondaries", code="duplicate-name")
        same = self.coordinator is not None and self.coordinator.address == self.primary.address
        if same and not self.primary.address.startswith(RELAY_SCHEME):  # a relay distinguishes parties by their names
            message = "coordinator and primary have the same address; use different ports"
            raise RuleError(message, "primary", code="duplicate-address")
        return self

    @model_validator(mode="after")
    def _check_linkage(self) -> Self:
        for name, terms in self.secondaries.items():
            if self.direct and terms.tokens is None:
                message = (
                    "without a [coordinator] records are linked by tokens; replace the schema, or add a coordinator"
                )
                raise RuleError(message, "secondaries", name, "schema", code="no-coordinator")
            if not self.direct and terms.tokens is not None:
                message = "tokens need no coordinator; remove the section [coordinator], or give a schema of filters"
                raise RuleError(message, "secondaries", name, "tokens", code="needless-coordinator")
            shared = "rows" if self.protection.sealed else "split"
            if not self.direct and terms.share not in (None, shared):
                fix = "gradients = 'none' for rows, none for split" if terms.share != "averages" else "no coordinator"
                message = f"with this coordinator and [protection], '{shared}' is shared, not '{terms.share}'; it needs"
                raise RuleError(f"{message} {fix}", "secondaries", name, "share", code="share-unlike-protection")
        if self.direct and not self.protection.sealed:
            sealed = self.protection.model_copy(update={"gradients": "none"})
            return self.model_copy(update={"protection": sealed})
        return self

    @model_validator(mode="after")
    def _check_embedding(self) -> Self:
        able = [name for name in METHODS.names(in_jobs=True) if METHODS.detail(name, "trees")]
        if self.protection.embedding and not self.protection.sealed and self.training.method not in able:
            message = f"embedding '{self.protection.embedding}' has no effect with method '{self.training.method}'"
            message = f"{message}; remove it, choose {' or '.join(able)}, or seal labels with gradients = 'none'"
            raise RuleError(message, "protection", "embedding", code="embedding-without-use")
        return self

    @model_validator(mode="after")
    def _apply_protection_preset(self) -> Self:
        if self.protection.preset is None:
            return self
        secondaries = {name: terms.with_protection_preset() for name, terms in self.secondaries.items()}
        return self.model_copy(update={"secondaries": secondaries})

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Job:
        """Validate settings such as those that :meth:`to_dict` returns, in this version or an earlier one."""
        return cls.parse(without_unused(settings) if isinstance(settings, Mapping) else settings, "the job")

    def to_dict(self) -> dict[str, Any]:
        """Return all settings in types that JSON has; later additions only where they are used, so hashes stay."""
        settings = self.model_dump(mode="json", by_alias=True)
        for secondary, terms in settings["secondaries"].items():
            kept = DIRECT_TERMS if self.direct else {*terms} - {"tokens", "max_tokens", "share", "m"}
            settings["secondaries"][secondary] = {name: term for name, term in terms.items() if name in kept}
        if self.direct:
            del settings["coordinator"]
        for (section, name), default in LATER_SETTINGS.items():
            if settings[section][name] == default:
                del settings[section][name]
        return settings

    @property
    def hash(self) -> str:
        """SHA-256 of the settings in hexadecimal; neither the layout of the file nor addresses count.

        Certificates say who a party is, so a job whose coordinator moves is still the job that its owners approved.
        """
        settings = self.to_dict() if self.direct else with_unused(self.to_dict())
        for role in {"coordinator", "primary"} & settings.keys():
            del settings[role]["address"]
        text = json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def direct(self) -> bool:
        """Whether records are linked without a coordinator."""
        return self.coordinator is None

    @property
    def kind(self) -> JobKind:
        """What differs from jobs of the other kind in words and rules."""
        return DIRECT if self.direct else BY_COORDINATOR

    @property
    def hub(self) -> Party:
        """The party that all others connect to first."""
        return self.parties[0]

    @property
    def sends_embedding(self) -> bool:
        """Whether secondaries send an embedding of every linked row once, instead of or beside activations."""
        return self.protection.sealed or self.protection.embedding is not None

    @property
    def short_hash(self) -> str:
        """The first twelve digits of the hash, for messages; they do not identify a job, as others can share them."""
        return self.hash[:12]

    @property
    def parties(self) -> list[Party]:
        """All parties: coordinator, if there is one, primary, then the secondaries by name."""
        first = [] if self.coordinator is None else [Party(Role.COORDINATOR, self.coordinator.name)]
        secondaries = [Party(Role.SECONDARY, name) for name in self.secondaries]
        return [*first, Party(Role.PRIMARY, self.primary.name), *secondaries]

    def address_of(self, party: Party) -> str:
        """Return the address at which other parties reach the coordinator or the primary."""
        address = {Role.COORDINATOR: self.coordinator, Role.PRIMARY: self.primary}.get(party.role)
        if party not in self.parties or address is None:
            message = f"job '{self.name}' has no address for {party}; only coordinator and primary have one"
            raise SettingError(message, code="no-address")
        return address.address


def read_job(path: Path) -> Job:
    """Read and validate a job file.

    Parameters
    ----------
    path
        The TOML file.

    Returns
    -------
    Job
        The job; ``job.path`` is the file.

    Raises
    ------
    FileError
        If the file cannot be read or is not valid TOML.
    ConfigFileError
        If settings are missing, unknown or invalid; ``error.faults`` lists every fault with its line.

    Examples
    --------
    >>> read_job(Path("job.toml")).short_hash  # doctest: +SKIP
    'b07d5f76a83b'
    """
    return Job.read(path)
