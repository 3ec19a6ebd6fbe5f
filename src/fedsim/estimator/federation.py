"""Link, prepare, train and predict with the tables of all parties; save what was trained, and load it."""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from fedsim import errors, training, validation
from fedsim.data.features import (
    FeaturePreprocessor,
    FeatureRules,
    fit_preprocessor,
    mean_trigrams,
    name_trigrams,
    text_columns,
)
from fedsim.estimator import inputs
from fedsim.estimator.inputs import COORDINATOR, PRIMARY, EstimatorSettings, LinkedColumns
from fedsim.hyperparameters import TrainingSettings
from fedsim.pipeline.fitted_model import FitPlan, FittedModel, LinkedInputs, LocalRows, fit
from fedsim.pipeline.linker import LocalLinker, metric_from_state, unreadable_links
from fedsim.privacy.bounds import check_sigma
from fedsim.splitnn import Features, methods, party_model, secondary_model
from fedsim.storage.files import atomic_folder
from fedsim.training import explain
from fedsim.training.boosted_trees import EmbeddedPartners, StackedTrees
from fedsim.training.config import build_config
from fedsim.training.data import target_from_state, target_state
from fedsim.training.explain import EXPLAINED_RECORDS
from fedsim.types import AnyArray, Explanation, Floats, Floats32, LinkageResult, Links, Split

MIN_NEAR_SHARE = 0.1  # of the primary's identifiers, within the secondary's range and as much again on either side


@dataclass(frozen=True)
class FederationPlan:
    """What the constructor requested; ``identifiers`` are the primary's columns that are not features.

    ``refit_trees`` says whether trees also learn the validation records once these have chosen.
    """

    config: training.Config
    pairs: tuple[LinkedColumns, ...]
    settings: EstimatorSettings
    rules: FeatureRules
    identifiers: tuple[str, ...]
    refit_trees: bool = True

    def __post_init__(self) -> None:
        check_sigma(self.settings.sigma)
        if self.settings.tau is not None and self.settings.sigma:
            noise = f"sigma={self.settings.sigma} and tau={self.settings.tau}"
            raise errors.SettingError(f"{noise} both set the noise; give one of them", code="two-noises")


@dataclass(frozen=True, eq=False)
class TrainingLabels:
    """The primary's labels, their type, the name of their column if it has one, and the weights of the records."""

    values: AnyArray
    task_type: training.TaskType
    name: str | None = None
    weights: Floats | None = None


@dataclass(frozen=True, eq=False)
class LinkedTable:
    """A secondary of the trained model; in a real federation its table stays with its owner."""

    pair: LinkedColumns
    linker: LocalLinker
    preparation: FeaturePreprocessor
    table: pl.DataFrame

    def features(self) -> Features:
        """Return the table as its network takes it."""
        return self.preparation.apply(self.pair.secondary_features(self.table))

    def __repr__(self) -> str:
        pair = self.pair
        return f"{pair.party}: {len(self.table):,} records linked by {', '.join(pair.ours)}, {pair.metric.name}"


@dataclass(frozen=True, eq=False)
class EmbeddedTrees:
    """Trees beside the network, the primary's columns of names, and the embedding of every secondary's rows."""

    stacked: StackedTrees
    texts: tuple[str, ...]
    rows: tuple[Floats32, ...]

    def partners(self, lists: Sequence[Links]) -> list[EmbeddedPartners]:
        """Return what the trees see of partners."""
        return [EmbeddedPartners(*both) for both in zip(self.rows, lists, strict=True)]


def embed_secondary(features: Features, party: str, config: training.Config) -> Floats32:
    """Return the embedding of a secondary's rows that trees see, as in a job with ``embedding = "random"``."""
    source = party_model.RandomSource(config.seed, party)
    return secondary_model.embed(features, EMBEDDING, config.local.cut, source)


@dataclass(frozen=True, eq=False)
class Federation:
    """Everything needed to predict for new records of the primary.

    All parties are in this process, but each has its own preprocessor and network, and they are stored apart.
    """

    model: training.Model
    preparation: FeaturePreprocessor
    identifiers: tuple[str, ...]
    linked: tuple[LinkedTable, ...]
    typical: Mapping[str, Any] | None = None  # what explanations compare with; missing in earlier releases
    trees: EmbeddedTrees | None = None
    label: str | None = None  # its name, if it has one

    def __repr__(self) -> str:
        columns = len(self.preparation.columns)
        return f"Federation({'; '.join([f'primary: {columns} features', *map(repr, self.linked)])})"

    def predict(self, primary: pl.DataFrame) -> tuple[Floats, Floats | None]:
        """Link new records; return numbers in the unit of the labels with intervals, or class probabilities."""
        return self._fitted().predict(self._inputs(primary))

    def explain(self, primary: pl.DataFrame, classes: Sequence[Any]) -> list[Explanation]:
        """Link new records, and explain the prediction of each."""
        return self._fitted(classes).explain(self._inputs(primary))[2]

    def _fitted(self, classes: Sequence[Any] = ()) -> FittedModel:
        return FittedModel(self.model, self.trees.stacked if self.trees else None, self.typical, classes)

    def _inputs(self, primary: pl.DataFrame) -> LinkedInputs:
        features, lists = self._features(primary), self.neighbours(primary)
        if self.trees is None:
            return LinkedInputs(features, lists)
        return LinkedInputs(features, lists, name_trigrams(primary, self.trees.texts), self.trees.partners(lists))

    def _features(self, primary: pl.DataFrame) -> Features:
        own = inputs.drop_identifiers(primary, self.identifiers, PRIMARY)
        return self.preparation.apply(own)

    def links(self, primary: pl.DataFrame) -> list[LinkageResult]:
        """Link records to every secondary."""
        return [party.linker.search(party.pair.primary_identifiers(primary)) for party in self.linked]

    def neighbours(self, primary: pl.DataFrame) -> list[Links]:
        """Link records to every secondary, as the method needs them."""
        return [party.linker.link_new(party.pair.primary_identifiers(primary)) for party in self.linked]


def fit_federation(
    plan: FederationPlan,
    primary: pl.DataFrame,
    secondaries: Sequence[pl.DataFrame],
    labels: TrainingLabels,
    split: Split,
    hooks: Sequence[training.Hook] = (),
) -> tuple[Federation, list[LinkageResult], training.TrainingResult]:
    """Link, prepare and train; scales are fitted on the training rows and, at a secondary, on their partners only."""
    own = inputs.drop_identifiers(primary, plan.identifiers, PRIMARY)
    preparation = fit_preprocessor(own, party=PRIMARY, rows=split.train, rules=plan.rules, label=labels.name)
    linked, links, local = [], [], []
    for pair, table in zip(plan.pairs, secondaries, strict=True):
        linker = LocalLinker(
            pair.party,
            pair.secondary_identifiers(table),
            pair.metric,
            plan.settings.k,
            sigma=plan.settings.sigma,
            tau=plan.settings.tau,
            **_linker_options(pair.party, plan.config),
        )
        found = linker.search(pair.primary_identifiers(primary), split.train)
        _warn_of_distant_identifiers(pair, primary, table)
        if linker.tau is not None and not pair.metric.whole:
            why = f"{pair.metric.name} distances are not, and the bound changes with their unit"
            message = f"tau bounds an attack on whole-number distances (Hamming); {why}"
            warnings.warn(message, UserWarning, stacklevel=3)
        columns, partners = pair.secondary_features(table), np.unique(found.partner[split.train])
        theirs = fit_preprocessor(columns, party=pair.party, rows=partners, rules=plan.rules)
        neighbours = linker.as_links(found)
        prepared = theirs.apply(columns)
        rows = training.SecondaryData(prepared, neighbours.partner, neighbours.similarity, pair.party)
        seen = embed_secondary(prepared, pair.party, plan.config) if plan.settings.stacked else None
        local.append(LocalRows([rows], seen))
        linked.append(LinkedTable(pair, linker, theirs, table))
        links.append(found)
    features = preparation.apply(own)
    own_data = training.PrimaryData(features, labels.values, labels.task_type, PRIMARY, labels.weights)
    texts = text_columns(primary.select(_learnt_identifiers(plan)))
    stacked = plan.settings.stacked and bool(local)
    fitted = fit(
        own_data,
        local,
        FitPlan(
            plan.config,
            split,
            names=name_trigrams(primary, texts) if stacked else None,
            refit_trees=plan.refit_trees,
            requested={"explained": split.validation[:EXPLAINED_RECORDS]},
            hooks=hooks,
        ),
    )
    trees, names = None, {}
    if fitted.trees is not None:
        embedded = tuple(one.embedding for one in local if one.embedding is not None)
        trees = EmbeddedTrees(fitted.trees, tuple(texts), embedded)
        names = mean_trigrams(name_trigrams(primary[split.train], texts), texts)
    typical_record = preparation.typical_record(own, split.train)
    sent = explain.average_sent(fitted.linked["explained"])
    typical = explain.TypicalInputs(typical_record, sent, preparation.places, names)
    federation = Federation(
        fitted.network.model, preparation, plan.identifiers, tuple(linked), typical.state(), trees, labels.name
    )
    return federation, links, fitted.network


def _learnt_identifiers(plan: FederationPlan) -> list[str]:
    return inputs.primary_link_columns(plan.settings.link_on) if plan.settings.use_identifiers else []


def _warn_of_distant_identifiers(pair: LinkedColumns, primary: pl.DataFrame, secondary: pl.DataFrame) -> None:
    """Warn if hardly a number of the primary is near those of the secondary, as after a scaler in a pipeline."""
    both = zip(pair.primary_identifiers(primary), pair.secondary_identifiers(secondary), strict=True)
    for ours, theirs in both:
        if not (ours.dtype.is_numeric() and theirs.dtype.is_numeric()):
            continue
        low, high = theirs.min(), theirs.max()
        if low is None or high is None:
            continue
        margin = float(high - low) or abs(float(high)) or 1.0  # type: ignore[operator,arg-type]
        near = ours.drop_nulls().is_between(float(low) - margin, float(high) + margin).mean()  # type: ignore[arg-type]
        if near is not None and float(near) < MIN_NEAR_SHARE:  # type: ignore[arg-type]
            what = f"only {100 * float(near):.0f} % of the primary's '{ours.name}' are near the values of {pair.party}"  # type: ignore[arg-type]
            fix = "if an earlier step of a pipeline changed them, pass the original columns as identifiers="
            message = f"{what}, so the links are probably meaningless; check the units, or, {fix}"
            warnings.warn(errors.replace_unprintable(message), UserWarning, stacklevel=4)


def _linker_options(party: str, config: training.Config) -> dict[str, Any]:
    """Return what the configuration of training decides about the links to one secondary."""
    seed = party_model.RandomSource(config.seed, COORDINATOR).step_seed(f"noise for {party}")
    equal_only = config.method.partners is methods.PartnerRequirement.SOME
    return {"seed": seed, "equal_only": equal_only}


# A trained estimator is saved as one folder per party:
#
#     model/primary/      model.json, features.json, weights.safetensors; trees.safetensors for the method stacked
#     model/coordinator/  links.json
#     model/secondary-1/  features.json, weights.safetensors
#
# A secondary's folder holds its own preprocessor and network; no party's table is stored, and nothing is unpickled.


ESTIMATOR_FORMAT = "fedsim estimator 1"
MODEL, FEATURES, LINKS, WEIGHTS = "model.json", "features.json", "links.json", "weights.safetensors"
TREES, EMBEDDING = "trees.safetensors", "random"
REQUIRED_FACTS = (
    *("parameters", "seed", "config", "identifiers", "n_features_in"),
    *("feature_names_in", "classes", "target", "history"),
)
NOT_STORED = ("secondaries", "random_state", "device", "tracking")  # tables; replaced by the seed; of the machine
OBJECT_PARAMETERS = ("metric", "method")  # names, or objects that JSON cannot store
PartyWeights = dict[str, dict[str, Tensor]]


def save_estimator(path: Path, estimator: Any) -> None:
    """Write everything needed for prediction, or keep what was there; only a model's folder is ever replaced."""
    federation: Federation = estimator.federation_
    given = estimator.get_params(deep=False) | vars(inputs.estimator_settings(estimator))
    parameters = {name: inputs.to_builtin(value) for name, value in given.items() if name not in NOT_STORED}
    parameters |= {name: None for name in OBJECT_PARAMETERS if not isinstance(parameters[name], str)}
    names, classes = (getattr(estimator, name, None) for name in ("feature_names_in_", "classes_"))
    if classes is not None and not all(isinstance(value, int | float | str | bool) for value in classes.tolist()):
        raise errors.SettingError("the classes are neither numbers nor text; a model with them cannot be saved")
    facts = {
        "format": ESTIMATOR_FORMAT,
        "estimator": type(estimator).__name__,
        "parameters": parameters,
        "seed": federation.model.config.seed,
        "config": _describe_config(federation.model.config),
        "identifiers": federation.identifiers,
        "n_features_in": estimator.n_features_in_,
        "feature_names_in": None if names is None else names.tolist(),
        "classes": None if classes is None else {"type": classes.dtype.str, "values": classes.tolist()},
        "target": target_state(federation.model.target),
        "history": estimator.history_,
        "typical": federation.typical,
        "label": federation.label,
    }
    trees: dict[str, Tensor] = {}
    if federation.trees is not None:
        trees, described = federation.trees.stacked.state()
        facts["trees"] = {**described, "texts": federation.trees.texts}
    links = {
        party.pair.party: {
            "primary_columns": party.pair.ours,
            "secondary_columns": party.pair.theirs,
            **party.linker.state(),
        }
        for party in federation.linked
    }
    preprocessors = {party.pair.party: party.preparation for party in federation.linked}
    weights = federation.model.parts()
    if path.exists() and not (path / PRIMARY / MODEL).is_file():
        raise errors.FileError(f"{path} exists and is not a model; choose another folder", code="not-a-model")
    with atomic_folder(path) as folder:
        for party, preprocessor in {PRIMARY: federation.preparation, **preprocessors}.items():
            (folder / party).mkdir(parents=True)
            (folder / party / FEATURES).write_text(preprocessor.to_json(), encoding="utf-8")
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights[party].items()}
            (folder / party / WEIGHTS).write_bytes(safetensors.torch.save(tensors))
        if trees:
            (folder / PRIMARY / TREES).write_bytes(safetensors.torch.save(trees))
        (folder / COORDINATOR).mkdir()
        (folder / COORDINATOR / LINKS).write_text(json.dumps(links, indent=1), encoding="utf-8")
        (folder / PRIMARY / MODEL).write_text(json.dumps(facts, indent=1), encoding="utf-8")


def load_estimator(
    kind: Any, path: Path, secondaries: Sequence[Any], *, method: methods.Method | None, device: str
) -> Any:
    """Load an estimator of this kind; the tables of the secondaries come in the order of training."""
    facts, links, features, weights = _read_folder(path)
    if facts["estimator"] != kind.__name__:
        message = f"this is a model of {facts['estimator']}; load it with {facts['estimator']}.load"
        raise errors.FileError(message, code="other-estimator", estimator=facts["estimator"])
    tables = inputs.secondary_tables(secondaries)
    if links and len(tables) != len(links):
        message = f"{len(tables)} secondaries, but the model was trained with {len(links)}; give these, in that order"
        raise errors.SettingError(message, code="secondary-count", limit=len(links))
    pairs = [_stored_columns(party, state) for party, state in links.items()]
    tables = inputs.drop_label(tables, facts.get("label"), pairs)
    parameters = {**facts["parameters"], "device": device}
    parameters["metric"] = parameters["metric"] or [pair.metric for pair in pairs]
    parameters["method"] = parameters["method"] or method
    if parameters["method"] is None:
        message = "the model was trained with a custom method; pass the same to load as method=..."
        raise errors.SettingError(message, code="custom-method")
    estimator = kind(secondaries, **parameters)
    preparation, config = FeaturePreprocessor.from_json(features[PRIMARY]), _trained_config(estimator, facts)
    linked = tuple(
        LinkedTable(
            pair,
            LocalLinker.restore(
                pair.party,
                pair.secondary_identifiers(table),
                links[pair.party],
                **_linker_options(pair.party, config),
            ),
            FeaturePreprocessor.from_json(features[pair.party]),
            table,
        )
        for pair, table in zip(pairs, tables, strict=False)
    )
    model = _rebuild_model(config, facts["target"], preparation, linked, weights)
    identifiers, typical = tuple(facts["identifiers"]), facts.get("typical")
    trees = _load_trees(path, facts["trees"], model.config, linked) if "trees" in facts else None
    estimator.federation_ = Federation(model, preparation, identifiers, linked, typical, trees, facts.get("label"))
    estimator.history_ = facts["history"]
    estimator.n_features_in_ = facts["n_features_in"]
    if facts["feature_names_in"] is not None:
        estimator.feature_names_in_ = np.array(facts["feature_names_in"], dtype=object)
    if facts["classes"] is not None:
        estimator.classes_ = np.array(facts["classes"]["values"], dtype=np.dtype(facts["classes"]["type"]))
    return estimator


def _stored_columns(party: str, state: Mapping[str, Any]) -> LinkedColumns:
    try:
        columns = tuple(state["primary_columns"]), tuple(state["secondary_columns"])
        return LinkedColumns(party, *columns, metric_from_state(state["metric"]))
    except (LookupError, TypeError) as error:
        raise unreadable_links(party, error) from error


def _load_trees(
    path: Path, facts: Mapping[str, Any], config: training.Config, linked: Sequence[LinkedTable]
) -> EmbeddedTrees:
    try:
        stacked = StackedTrees.from_state(safetensors.torch.load((path / PRIMARY / TREES).read_bytes()), facts)
    except (OSError, KeyError, SafetensorError) as error:
        message = f"{path / PRIMARY / TREES} cannot be read; give the whole folder that save() wrote"
        raise errors.FileError(message, code="damaged-model") from error
    rows = tuple(embed_secondary(party.features(), party.pair.party, config) for party in linked)
    return EmbeddedTrees(stacked, tuple(facts["texts"]), rows)


def _read_folder(path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, str], PartyWeights]:
    """Return the primary's facts, the links, and each party's features and weights."""
    try:
        facts = json.loads((path / PRIMARY / MODEL).read_text(encoding="utf-8"))
        if facts["format"] != ESTIMATOR_FORMAT:
            message = f"{path} was written as '{facts['format']}', this version reads '{ESTIMATOR_FORMAT}'; train again"
            raise errors.FileError(message, code="other-version", found=facts["format"])
        missing = [name for name in REQUIRED_FACTS if name not in facts]
        if missing:
            message = f"{path}: {PRIMARY}/{MODEL} lacks '{missing[0]}'; save the model again"
            raise errors.FileError(message, code="missing-fact", fact=missing[0])
        links = json.loads((path / COORDINATOR / LINKS).read_text(encoding="utf-8"))
        parties = [PRIMARY, *links]
        features = {party: (path / party / FEATURES).read_text(encoding="utf-8") for party in parties}
        weights = {party: safetensors.torch.load((path / party / WEIGHTS).read_bytes()) for party in parties}
    except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
        message = f"{path} is not a readable model ({type(error).__name__}); give the whole folder that save() wrote"
        raise errors.FileError(message, code="damaged-model") from error
    return facts, links, features, weights


def _trained_config(estimator: Any, facts: Mapping[str, Any]) -> training.Config:
    """Return the configuration of the parameters, which must be the one of training."""
    trained = facts["config"]  # its length, where the number of training records decided it
    lengths = {"epochs": trained["epochs"], "batch_size": trained["batch"], "patience": trained["patience"]}
    own = TrainingSettings.of(estimator)
    settings = replace(own, **{name: value for name, value in lengths.items() if name not in own.given})
    method = estimator.method if facts["config"]["method"]["kind"] != "Solo" else "solo"
    config = build_config(method, settings, seed=facts["seed"], device=estimator.device)
    if isinstance(config.method, methods.FedSim) and "match" not in facts["config"]["method"]:  # trained by version 0.1
        config = replace(config, method=replace(config.method, match=None))
    other = validation.first_difference(_describe_config(config), facts["config"], "setting")
    if other:
        message = f"the model was trained with another configuration: {other}; use that version of FedSim"
        raise errors.FileError(message, code="other-configuration", difference=other)
    return config


def _describe_config(config: training.Config) -> Any:
    return json.loads(json.dumps(party_model.describe(replace(config, device="any"))))


def _rebuild_model(
    config: training.Config,
    target: Mapping[str, Any],
    preparation: FeaturePreprocessor,
    linked: Sequence[LinkedTable],
    weights: PartyWeights,
) -> training.Model:
    """Build the networks from the columns' shapes, and load their weights."""
    lists, device = [], party_model.resolve_device(config.device)
    for party in linked:
        name = party.pair.party
        holder = secondary_model.restore_secondary(
            name, party.features(), config.secondary, weights[name], device=device
        )
        lists.append(training.NeighbourList(Links.without_records(party.linker.k), (holder,)))
    columns = preparation.without_records()
    return training.restore_model(config, target_from_state(target), columns, lists, weights[PRIMARY], PRIMARY)
