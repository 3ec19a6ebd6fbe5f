"""Which of its own columns a party uses in a job: identifiers, features and label."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedsim.config.job import Job
from fedsim.config.party_file import PartyFile
from fedsim.config.toml_file import shorten
from fedsim.data.column_names import missing_column_message
from fedsim.errors import InputError, SettingError, nearest_word
from fedsim.protocol.messages import Role


@dataclass(frozen=True)
class PartyColumns:
    """Columns by use; ``identifiers`` are, for every secondary, own columns by the names that were agreed.

    ``features`` are None where the party file leaves them to the table and the table's header is not known yet.
    """

    identifiers: Mapping[str, Mapping[str, str]]
    features: tuple[str, ...] | None
    label: str | None

    @property
    def linking(self) -> tuple[str, ...]:
        """Every own column that is an identifier, once."""
        return tuple(dict.fromkeys(column for named in self.identifiers.values() for column in named.values()))

    def described(self) -> dict[str, Any]:
        """The same in types that JSON has."""
        features = None if self.features is None else list(self.features)
        return {**asdict(self), "features": features}


def require_membership(job: Job, party_file: PartyFile) -> None:
    """The party is one of the job's, and its identifiers are names that were agreed on."""
    if party_file.party not in job.parties:
        same = [party.name for party in job.parties if party.role is party_file.role]
        raise SettingError(
            f"{party_file.party} does not take part in job '{job.name}', whose {party_file.role} is "
            f"{' or '.join(same)}; mend name or role in the party file"
        )
    linked = _linked_secondaries(job, party_file)
    where = f"{party_file.path}: identifiers"
    agreed = {name: job.secondaries[name].encoding.columns for name in linked}
    for name, column in party_file.identifiers.items():
        if isinstance(column, dict):
            _check_known(name, linked, where)
            for inside in column:
                _check_known(inside, agreed[name], f"{where}.{name}")
        else:
            _check_known(name, [word for names in agreed.values() for word in names], where)


def resolve_columns(job: Job, party_file: PartyFile, header: Sequence[str] | None = None) -> PartyColumns:
    """The party's columns in this job; with the ``header`` of its table everything is known and checked."""
    require_membership(job, party_file)
    identifiers = {name: identifier_columns(job, party_file, name) for name in _linked_secondaries(job, party_file)}
    label = party_file.label.column if party_file.label else None
    linking = [column for columns in identifiers.values() for column in columns.values()]
    if label in linking:
        raise SettingError("the label is used as an identifier and would leave the party; link by other columns")
    taken = [*dict.fromkeys(linking), *([label] if label else [])]
    if header is not None:
        _check_present(party_file, taken, header)
    return PartyColumns(identifiers, _feature_columns(party_file, taken, header), label)


def identifier_columns(job: Job, party_file: PartyFile, secondary: str) -> dict[str, str]:
    """Own columns by agreed names, for the linkage with one secondary; a name left out is the column's own."""
    special = party_file.identifiers.get(secondary)
    chosen = {**party_file.identifiers, **(special if isinstance(special, dict) else {})}
    columns = ((name, chosen.get(name)) for name in job.secondaries[secondary].encoding.columns)
    return {name: column if isinstance(column, str) else name for name, column in columns}


def columns_outside_policy(job: Job, party_file: PartyFile) -> list[str]:
    """Columns that the party file names although its own policy does not list them; for the owner's eyes only."""
    allowed = party_file.policy.columns
    if allowed is None or party_file.role is Role.COORDINATOR:
        return []
    own = resolve_columns(job, party_file)
    named = [*own.linking, *(own.features or ()), *([own.label] if own.label else [])]
    return [column for column in dict.fromkeys(named) if column not in allowed]


def _linked_secondaries(job: Job, party_file: PartyFile) -> list[str]:
    """The secondaries whose linkage this party encodes identifiers for."""
    linkages = {Role.COORDINATOR: [], Role.PRIMARY: list(job.secondaries), Role.SECONDARY: [party_file.name]}
    return linkages[party_file.role]


def _feature_columns(
    party_file: PartyFile, taken: Sequence[str], header: Sequence[str] | None
) -> tuple[str, ...] | None:
    wanted = party_file.features
    if party_file.role is Role.COORDINATOR:
        return ()
    if wanted.columns is None and header is None:
        return None
    if header is not None:
        _check_present(party_file, [*(wanted.columns or ()), *wanted.drop], header)
    features = (
        wanted.columns if wanted.columns is not None else tuple(_remaining_columns(party_file, taken, header or ()))
    )
    if not features:
        raise SettingError("no column is left as a feature; name some under features.columns")
    if party_file.label and party_file.label.column in features:
        raise SettingError("the label is listed under features.columns, too; what is predicted is no feature")
    for name in wanted.kinds:
        _check_known(name, features, f"{party_file.path}: features.kinds")
    return features


def _remaining_columns(party_file: PartyFile, taken: Sequence[str], header: Sequence[str]) -> Iterator[str]:
    """Whatever is not used otherwise, not dropped, and allowed by the party's policy."""
    allowed = party_file.policy.columns
    for column in header:
        if column not in taken and column not in party_file.features.drop and (allowed is None or column in allowed):
            yield column


def _check_known(name: str, known: Iterable[str], where: str) -> None:
    known = list(dict.fromkeys(known))
    if name not in known:
        near = nearest_word(name, known)
        hint = f"did you mean '{near}'?" if near else f"choose from {', '.join(known) or 'nothing'}"
        raise SettingError(f"{where} names '{shorten(name)}', which is unknown here; {hint}")


def _check_present(party_file: PartyFile, columns: Iterable[str], header: Sequence[str]) -> None:
    source = party_file.data.source if party_file.data else "the table"
    for column in columns:
        if column not in header:
            raise InputError(f"{source}: {missing_column_message(column, header)}")
