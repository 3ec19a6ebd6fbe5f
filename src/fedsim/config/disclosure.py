"""What leaves a party in a job, who receives it, what comes in and what stays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fedsim.config.job import CutTerms, Job, Protection, SecondaryTerms
from fedsim.config.party_columns import PartyColumns
from fedsim.config.party_file import PartyFile
from fedsim.config.policy import hardening_steps
from fedsim.protocol.messages import Party, Role


@dataclass(frozen=True)
class Paragraph:
    """Sentences under a heading."""

    heading: str
    sentences: tuple[str, ...]


def describe_disclosure(job: Job, party_file: PartyFile, columns: PartyColumns) -> list[Paragraph]:
    """What the owner has to know before taking part."""
    tell = {
        Role.COORDINATOR: _coordinator_disclosure,
        Role.PRIMARY: _primary_disclosure,
        Role.SECONDARY: _secondary_disclosure,
    }
    common = (
        "to the parties it speaks with: this party's name, the job itself, the releases of its software, its clock, "
        "and the reason should it refuse or fail"
    )
    return [*tell[party_file.role](job, party_file, columns), Paragraph("also leaves", (common,))]


def summarise_settings(job: Job) -> Iterator[tuple[str, str]]:
    """The job's settings that an owner looks at, by name."""
    training = job.training
    epochs = "as the preset has it" if training.epochs is None else f"{training.epochs:,}"
    yield "job", f"{job.name}, hash {job.hash}"
    yield "task", f"{job.task.kind}, {job.task.split} split"
    yield "training", f"{training.method}, preset {training.preset}, epochs {epochs}, {training.wire} on the wire"
    for name, terms in job.secondaries.items():
        hardening = ", ".join(hardening_steps(terms)) or "none"
        yield name, f"k {terms.k}, {terms.metric}, {describe_noise(terms)}, hardening of filters: {hardening}"
        further = ", ".join(_extra_protection(terms))
        if further:
            yield "", further
    if job.protection.preset:
        yield "preset", f"{job.protection.preset}, which stands for the settings above and below"
    protection = job.protection
    yield "features", _describe_feature_noise(protection)
    yield (
        "cut",
        f"activations {_describe_cut_noise(protection.activations)}, gradients {_describe_cut_noise(protection.gradients)}",
    )


def _extra_protection(terms: SecondaryTerms) -> Iterator[str]:
    """What else protects one list."""
    if terms.blur:
        yield f"places blurred with epsilon {terms.blur.epsilon_per_km:g} per km"
    if terms.min_degree > 1:
        yield f"partners named by at least {terms.min_degree} records"
    if terms.dummies:
        yield f"{terms.dummies:.0%} of the links are dummies"
    if terms.hide_rows:
        yield "the primary cannot see which rows repeat between records at different places"


def _describe_feature_noise(protection: Protection) -> str:
    terms = protection.features
    return "of secondaries as they are" if terms is None else f"of secondaries with noise of {terms.noise:g} deviations"


def _describe_cut_noise(terms: CutTerms | None) -> str:
    return "as they are" if terms is None else f"clipped at {terms.clip:g} with noise {terms.noise:g} times that"


def describe_noise(terms: SecondaryTerms) -> str:
    """How much noise lies on the similarities of one list."""
    if terms.tau is not None:
        return f"noise such that tau is {terms.tau:g}"
    return "NO noise on similarities" if terms.sigma is None else f"noise of sigma {terms.sigma:g}"


def _secondary_disclosure(job: Job, party_file: PartyFile, columns: PartyColumns) -> Iterator[Paragraph]:
    coordinator, primary = _coordinator_and_primary(job)
    terms = job.secondaries[party_file.name]
    yield Paragraph(
        f"to {coordinator}",
        (f"{_describe_encoding(terms, columns.identifiers[party_file.name])}", "how many records this party has"),
    )
    yield Paragraph(
        f"to {primary}",
        (
            f"what this party's network makes of its features ({_feature_names(columns)}), as numbers (activations), "
            "for the rows that are asked for",
            "how many records this party has",
            *_comparison_runs(party_file),
        ),
    )
    yield Paragraph(
        "comes in",
        (
            f"from {coordinator}: {_describe_row_order(terms)}, so that {primary} sees no true row number",
            f"from {primary}: {'numbers of links' if terms.hide_rows else 'row numbers in that order'}, and gradients "
            "of the activations",
        ),
    )
    yield _retained_data(columns)


def _comparison_runs(party_file: PartyFile) -> Iterator[str]:
    most = party_file.policy.max_studies
    if most:
        yield f"the same of up to {most:,} further trainings, with which it compares (max_studies)"


def _primary_disclosure(job: Job, party_file: PartyFile, columns: PartyColumns) -> Iterator[Paragraph]:
    coordinator, _ = _coordinator_and_primary(job)
    encoded = (
        f"for {Party(Role.SECONDARY, name)}: {_describe_encoding(terms, columns.identifiers[name])}"
        for name, terms in job.secondaries.items()
    )
    yield Paragraph(
        f"to {coordinator}", (*encoded, "how many records this party has, and which of them train: one bit for each")
    )
    for name, terms in job.secondaries.items():
        numbers = "numbers of links" if terms.hide_rows else "pseudonymous row numbers"
        yield Paragraph(
            f"to {Party(Role.SECONDARY, name)}",
            (
                f"which of its rows each step needs, by {numbers}",
                "gradients of its activations; they are computed from the labels and can tell something about them",
            ),
        )
    lists = (f"from {coordinator}: {_describe_links(name, terms)}" for name, terms in job.secondaries.items())
    yield Paragraph("comes in", (*lists, "from each secondary: activations of the rows asked for"))
    yield _retained_data(columns)


def _coordinator_disclosure(job: Job, party_file: PartyFile, columns: PartyColumns) -> Iterator[Paragraph]:
    _, primary = _coordinator_and_primary(job)
    yield Paragraph(f"to {primary}", tuple(_describe_links(name, terms) for name, terms in job.secondaries.items()))
    for name, terms in job.secondaries.items():
        yield Paragraph(f"to {Party(Role.SECONDARY, name)}", (_describe_row_order(terms),))
    yield Paragraph("comes in", ("from primary and secondaries: encoded identifiers, without the key to read them",))
    yield Paragraph("stays here", ("distances, similarities before noise, and true row numbers",))


def _coordinator_and_primary(job: Job) -> tuple[Party, Party]:
    coordinator, primary, *_ = job.parties
    return coordinator, primary


def _describe_encoding(terms: SecondaryTerms, own: Mapping[str, str]) -> str:
    named = (name if name == column else f"{name} (own column {column})" for name, column in own.items())
    bits = f"{terms.encoding.n_bits:,} bits"
    return (
        f"the identifiers {_join_names(named)}, encoded as filters of {bits} with a key the coordinator does not have"
    )


def _describe_row_order(terms: SecondaryTerms) -> str:
    """What the coordinator tells a secondary about the links."""
    if terms.hide_rows:
        return f"the row behind every link, {terms.k} for each record of the primary"
    return "a secret order of its rows"


def _describe_links(name: str, terms: SecondaryTerms) -> str:
    numbers = "a number of its own for every link" if terms.hide_rows else "pseudonymous row numbers"
    rows = f"{terms.k} rows of {Party(Role.SECONDARY, name)} by {numbers}"
    return f"for every record of the primary {rows}, and their similarities, {describe_noise(terms)}"


def _retained_data(columns: PartyColumns) -> Paragraph:
    own = _join_names(columns.linking)
    label = f"; the label {columns.label}" if columns.label else ""
    return Paragraph(
        "stays here",
        (f"the identifiers {own} in the clear; the features {_feature_names(columns)}{label}; the key",),
    )


def _feature_names(columns: PartyColumns) -> str:
    return "all other columns of the table" if columns.features is None else _join_names(columns.features)


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(names)
