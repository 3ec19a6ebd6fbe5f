"""What a job discloses about a party, to whom, and which privacy guarantees it gives."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fedsim.config.job import FeatureTerms, Job, SecondaryTerms
from fedsim.config.job_kind import CoordinatorKind, DirectKind
from fedsim.config.party_file import MAX_REPEATED_EPOCHS, PartyColumns, PartyFile, Policy
from fedsim.linkage.direct.groups import ShareLevel
from fedsim.privacy.mechanisms import NoisyFeatures, PlanarLaplace
from fedsim.protocol.messages import Party, Role
from fedsim.registry import METRICS, SHARES

NOISE_REUSE_NOTE = (
    "Noise on coordinates and features is drawn once for all jobs with the same terms and table, noise on similarities "
    "once per job. Different terms, a different table or, for similarities, a different job (one changed setting is "
    "enough) may draw new noise, and what the draws reveal adds up."
)


FEATURES_NOTE = "it shows the rank of every number and the common categories"
GUESSES_NOTE = "anyone who knows the features of some rows can estimate those of the others"
EMBEDDING_NOTE = "anyone who knows the features of some rows can estimate the rest; `fedsim audit` measures how well"


EXPLAINED = (
    "anyone who reads a report or an explained prediction of the primary sees, for single records of the primary, how "
    "similar your linked records are and how they change the prediction, under numbers that mean nothing elsewhere"
)


@dataclass(frozen=True)
class Paragraph:
    """Sentences under a heading, and a table of texts whose first row has the titles."""

    heading: str
    sentences: tuple[str, ...]
    table: tuple[tuple[str, ...], ...] = ()


def summarise_settings(job: Job) -> Iterator[tuple[str, str]]:
    """Yield name and value of the settings that an owner should read before approving the job."""
    training, protection = job.training, job.protection
    epochs = "set by the preset" if training.epochs is None else f"{training.epochs:,}"
    yield "job", f"{job.name}, hash {job.hash}"
    yield "task", f"{job.task.kind}, {job.task.split} split"
    yield "training", f"{training.method}, preset {training.preset}, epochs {epochs}, wire format {training.wire}"
    if training.party_dropout:
        share = f"{100 * training.party_dropout:g} % of the training records, drawn for each secondary and step"
        yield "dropout", f"{share}, do without it, so that the model can predict while it is away"
    for name, terms in job.secondaries.items():
        if terms.tokens is not None:
            kinds = ", ".join(f"{' and '.join(field.columns)} as {field.kind.KIND}" for field in terms.tokens.fields)
            yield name, f"k {terms.k}, linked by tokens of {kinds}; up to {terms.max_tokens:,} tokens evaluated"
            yield name, f"shares {terms.share}, m = {terms.m}: the primary gets {terms.level.receives(terms.m or 1)}"
            continue
        linked = f"k {terms.k}, {terms.metric}, {describe_noise(terms)}"
        blur = terms.blur and f"coordinates blurred with epsilon {terms.blur.epsilon_per_km:g} per km"
        yield name, f"{linked}; {blur}" if blur else linked
    if protection.preset:
        yield "preset", f"{protection.preset}, which sets the values shown here"
    yield "features", describe_features(protection.features)
    yield from job.kind.settings(job)


def describe_features(terms: FeatureTerms | None) -> str:
    """Describe what happens to the features of secondaries before they enter a network."""
    if terms is None:
        return "no noise"
    return f"of secondaries with noise of {terms.noise:g} standard deviations"


def describe_noise(terms: SecondaryTerms) -> str:
    """Describe the noise on the similarities of one linkage."""
    if terms.tau is not None:
        return f"noise for tau {terms.tau:g}"
    return "NO noise on similarities" if terms.sigma is None else f"noise of sigma {terms.sigma:g}"


# What leaves a party, what it receives, and what stays


def describe_disclosure(job: Job, party_file: PartyFile, columns: PartyColumns) -> list[Paragraph]:
    """Return what the owner of a party should know before approving the job.

    Parameters
    ----------
    job
        The job.
    party_file
        The file of the party whose owner reads the text.
    columns
        The columns that the party uses in the job.

    Returns
    -------
    list of Paragraph
        What leaves the party, what it receives and what stays.
    """
    found = [*_DESCRIPTIONS[type(job.kind), party_file.role](job, party_file, columns)]
    if party_file.role is not Role.COORDINATOR:
        label = f"; the label {columns.label}" if columns.label else ""
        features = _feature_names(columns)
        kept = job.kind.keeps(party_file.role)
        own = f"the identifiers {', '.join(columns.linking)} in clear text; the features {features}{label}; {kept}"
        own = own if columns.linking else f"the features {features} in clear text"
        found.append(Paragraph("stays here", (own,)))
    common = "its name, the job, its software versions, its clock, and the reason if it refuses or fails"
    return [*found, Paragraph("also leaves", (f"to the parties it connects with: {common}",))]


def _coordinator_disclosure(job: Job, party_file: PartyFile, columns: PartyColumns) -> Iterator[Paragraph]:
    links = tuple(_describe_links(name, terms) for name, terms in job.secondaries.items())
    yield Paragraph(f"to {Party(Role.PRIMARY, job.primary.name)}", links)
    for name, terms in job.secondaries.items():
        order = _describe_row_order(terms, sealed=job.protection.sealed)
        yield Paragraph(f"to {Party(Role.SECONDARY, name)}", (order,))
    yield Paragraph("receives", ("from primary and secondaries: encoded identifiers, without the key",))
    yield Paragraph("stays here", ("distances, similarities before noise, and true row numbers",))


def _secondary_disclosure(job: Job, party_file: PartyFile, columns: PartyColumns) -> Iterator[Paragraph]:
    coordinator, primary = job.hub, Party(Role.PRIMARY, job.primary.name)
    terms, studies = job.secondaries[party_file.name], party_file.policy.max_studies
    count = "the number of its records"
    identifiers = columns.identifiers.get(party_file.name, {})
    to_coordinator: tuple[str, ...] = (_describe_encoding(terms, identifiers), count)
    yield Paragraph(f"to {coordinator}", to_coordinator)
    features, sealed = _feature_names(columns), job.protection.sealed
    outputs = f"the output of its network for its features ({features}): activations of requested rows"
    embedded = f"an embedding of its features ({features}), computed without labels: every linked row once"
    note = FEATURES_NOTE if job.protection.embedding_name == "features" else EMBEDDING_NOTE
    days = job.protection.retention.days
    stored = f"which the primary stores for up to {days} days or until you request deletion"
    compared = (f"the same for up to {studies:,} additional training runs (max_studies)",) if studies else ()
    sent: tuple[str, ...] = (outputs, count, *compared)
    if sealed:
        sent = (f"{embedded}, {stored}; {note}", count)
    elif job.sends_embedding:
        sent = (*sent, f"{embedded}, for the trees beside the network, and not stored by the primary; {note}")
    yield Paragraph(f"to {primary}", sent)
    yield Paragraph("explanations of predictions", (EXPLAINED,))
    yield Paragraph("limits, enforced while the job runs", tuple(_secondary_limits(party_file.policy)))
    order = f"{_describe_row_order(terms, sealed=sealed)}, so that {primary} sees no true row number"
    gradients = "" if sealed else ", and gradients of the activations"
    yield Paragraph(
        "receives", (f"from {coordinator}: {order}", f"from {primary}: row numbers in that order{gradients}")
    )


def _secondary_limits(policy: Policy) -> Iterator[str]:
    yield (
        "only rows that the coordinator linked to records of the primary, each once per request; the steps of the job, "
        f"across all restarts, of which {MAX_REPEATED_EPOCHS} epochs may be repeated with different numbers; one "
        "request without gradients per epoch, and a few at the end"
    )
    yield f"predictions of up to {policy.max_new_records:,} new records (max_new_records)"
    records = "all" if policy.max_records is None else f"{policy.max_records:,}"
    yield (
        f"this primary over all jobs: up to {policy.max_jobs:,} jobs (max_jobs), {policy.max_total_epochs:,} epochs "
        f"(max_total_epochs), {policy.max_studies:,} comparison runs (max_studies), {records} records (max_records)"
    )
    if policy.max_record_uses is not None:
        yield f"each record is used for up to {policy.max_record_uses:,} new records, over all jobs (max_record_uses)"


def _primary_disclosure(job: Job, party_file: PartyFile, columns: PartyColumns) -> Iterator[Paragraph]:
    coordinator = job.hub
    encoded = tuple(
        f"for {Party(Role.SECONDARY, name)}: {_describe_encoding(terms, columns.identifiers[name])}"
        for name, terms in job.secondaries.items()
    )
    count = "the number of its records"
    if not job.protection.sealed:
        count = f"{count}, and which of them are used for training (one bit each)"
    yield Paragraph(f"to {coordinator}", (*encoded, count))
    numbers = "pseudonymous row numbers"
    for name in job.secondaries:
        sent: tuple[str, ...] = (
            f"the rows that each training step needs, as {numbers}",
            "gradients of its activations, which are computed from the labels and can reveal something about them",
        )
        if job.protection.sealed:
            sent = (f"the rows that its records are linked to, once, as {numbers}; nothing that depends on a label",)
        yield Paragraph(f"to {Party(Role.SECONDARY, name)}", sent)
    links = [f"from {coordinator}: {_describe_links(name, terms)}" for name, terms in job.secondaries.items()]
    rows = "activations of the requested rows"
    if job.sends_embedding:
        embedded = f"the embedding '{job.protection.embedding_name}' of every linked row, once"
        rows = embedded if job.protection.sealed else f"{rows}, and {embedded}, for the trees beside the network"
    yield Paragraph("receives", (*links, f"from each secondary: {rows}"))


# Without a coordinator


def _direct_secondary_disclosure(job: Job, party_file: PartyFile, columns: PartyColumns) -> Iterator[Paragraph]:
    primary, terms = Party(Role.PRIMARY, job.primary.name), job.secondaries[party_file.name]
    features, policy = _feature_names(columns), party_file.policy
    note = FEATURES_NOTE if job.protection.embedding_name == "features" else GUESSES_NOTE
    level, m = terms.level, terms.m or 1
    yield Paragraph(
        f"to {primary}",
        (
            f"an encrypted table: tokens of your identifiers ({', '.join(columns.linking)}), embeddings of "
            f"features ({features}), computed without labels; and the number of both",
            f"{primary} gets {level.receives(m)}; {level.shows(m)}",
            f"it opens what its own records reach: {_needed(terms)}; and sees which of its records resemble it"
            f"{_hints(terms)}; {note}",
            f"it stores what it opened for up to {job.protection.retention.days} days or until you request deletion",
            *_left_out(policy),
            "it learns nothing else; once you destroy the key of the table, no other token ever opens anything",
        ),
    )
    yield Paragraph("Levels that you can choose from", (), tuple(_level_rows(terms)))
    yield Paragraph("explanations of predictions", (EXPLAINED,))
    limit = terms.max_tokens if policy.max_tokens is None else policy.max_tokens
    yield Paragraph(
        "limits, enforced while the job runs",
        (
            f"up to {limit:,} tokens are evaluated for this primary, over all jobs and predictions (max_tokens): each "
            "guess of a word, name, cell or value of yours costs it one",
            f"up to {policy.max_jobs:,} jobs of this primary (max_jobs)",
        ),
    )
    received = f"from {primary}: blinded tokens, which are random points to you, and a rounded number of them"
    yield Paragraph("receives", (received, "nothing that depends on a label"))


def _direct_primary_disclosure(job: Job, party_file: PartyFile, columns: PartyColumns) -> Iterator[Paragraph]:
    for name, terms in job.secondaries.items():
        names = ", ".join(columns.identifiers[name].values())
        sent = f"blinded tokens of the identifiers {names}, which are random points to it, padded to a round number"
        when = f"up to {terms.max_tokens:,} of them, once for each token, also for predictions"
        yield Paragraph(f"to {Party(Role.SECONDARY, name)}", (f"{sent}; {when}", "nothing that depends on a label"))
    yield Paragraph(
        "receives",
        tuple(
            f"from {Party(Role.SECONDARY, name)}: an encrypted table, of which your records open the rows that they "
            f"reach: a row with {_needed(terms)}{_hints(terms)}"
            for name, terms in job.secondaries.items()
        ),
    )


_DESCRIPTIONS = {
    (CoordinatorKind, Role.COORDINATOR): _coordinator_disclosure,
    (CoordinatorKind, Role.PRIMARY): _primary_disclosure,
    (CoordinatorKind, Role.SECONDARY): _secondary_disclosure,
    (DirectKind, Role.PRIMARY): _direct_primary_disclosure,
    (DirectKind, Role.SECONDARY): _direct_secondary_disclosure,
}


def _level_rows(terms: SecondaryTerms) -> Iterator[tuple[str, str, str]]:
    """Yield a table of all levels: what the secondary and what the primary would receive."""
    yield "level", "you would receive", "the primary would receive"
    for name in SHARES.names():
        own, others = "row numbers and gradients, which can reveal labels", SHARES.summary(name)
        title = name
        if SHARES.detail(name, "direct"):
            level: ShareLevel = SHARES[name]
            m = terms.m if name == terms.share and terms.m else level.M
            title = f"{name}, m = {m}"
            own, others = "random points; nothing of labels", f"{level.receives(m)}; {level.shows(m)}"
        yield f"{title}{' (this job)' if name == terms.share else ''}", own, others


def _left_out(policy: Policy) -> Iterator[str]:
    if policy.min_list_rows is not None:
        yield f"tokens of fewer than {policy.min_list_rows:,} of your rows are left out (min_list_rows)"


def _needed(terms: SecondaryTerms) -> str:
    """Say what opens a row."""
    return " or ".join(f"{of.kind.OPENS} of {' and '.join(of.columns)} in common" for of in terms.token_schema.fields)


def _hints(terms: SecondaryTerms) -> str:
    """Say what an opened row shows of its identifiers."""
    fields = terms.token_schema.fields
    shown = [f"{' and '.join(of.columns)} {of.kind.shown}" for of in fields if of.kind.shown]
    return f", and {', '.join(shown)}" if shown else ""


def _describe_encoding(terms: SecondaryTerms, columns: Mapping[str, str]) -> str:
    names = (name if name == column else f"{name} (own column {column})" for name, column in columns.items())
    kind = "positions" if terms.encoding.positions else "Bloom filters"
    encoded = f"encoded as {kind} of {terms.encoding.n_bits:,} bits"
    return f"the identifiers {', '.join(names)}, {encoded} with a key that the coordinator does not have"


def _describe_row_order(terms: SecondaryTerms, *, sealed: bool) -> str:
    number = "records of the primary" if sealed else "training records"
    return f"a secret permutation of its linked rows, and the number of {number}"


def _describe_links(name: str, terms: SecondaryTerms) -> str:
    rows = f"{terms.k} rows of {Party(Role.SECONDARY, name)}, as pseudonymous row numbers"
    return f"for each record of the primary, {rows}, with their similarities ({describe_noise(terms)})"


def _feature_names(columns: PartyColumns) -> str:
    return "all other columns of the table" if columns.features is None else ", ".join(columns.features)


# Guarantees of the privacy mechanisms


def privacy_guarantees(job: Job) -> list[str]:
    """Return the guarantees of the job's privacy mechanisms, one sentence or two each."""
    protection, lists = job.protection, job.secondaries
    found = [f"{name}: {sentence}" for name, terms in job.secondaries.items() for sentence in _list_guarantees(terms)]
    if protection.features:
        found.append(f"features: {NoisyFeatures(protection.features.noise).guarantee}")
    if protection.sealed:
        found.append(
            "labels: Nothing that a secondary receives depends on a label, so no attack on labels is possible."
        )
    drawn_once = any((terms.tau, terms.sigma, terms.blur) != (None, None, None) for terms in lists.values())
    if drawn_once or protection.features:
        found.append(NOISE_REUSE_NOTE)
    return found or ["none: this job adds no noise"]


def _list_guarantees(terms: SecondaryTerms) -> Iterator[str]:
    if terms.tokens is not None:
        yield "A row that no token of the primary opens stays encrypted, also for whoever copies the table."
        return
    if terms.tau is not None:
        average = not METRICS.detail(terms.metric, "counts_bits")
        which = "the similarity of an average link" if average else "one similarity"
        yield (
            f"The paper's greedy attack guesses a filter from {which} with probability at most {terms.tau:g}"
            f"{'' if average else ' if similarities are normally distributed'}. Attacks that know which distances are "
            "frequent, combine all links of a partner, or use only who is listed are not bounded."
        )
    if terms.sigma is not None:
        yield f"Similarities have noise of sigma {terms.sigma:g}; its effect depends on the spread of the distances."
    if terms.blur is not None:
        yield PlanarLaplace(terms.blur.epsilon).guarantee
