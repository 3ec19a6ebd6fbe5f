"""Measure what each share level keeps of a partner's contribution, for ``docs/privacy-results.md``.

``FEDSIM_DATA=/data fedsim lab bench share_levels -- city firms films vgsales house hdb`` prints a line per case, and
``-- attacks`` what the audit finds. Gains are those of boosted trees on random splits, two seeds; links are exact, so
that only the level differs. A placebo has the same links, with the partner's rows permuted before they are grouped.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from scipy.spatial import cKDTree
from sklearn.ensemble import HistGradientBoostingRegressor

from fedsim.data.features import FeatureRules, fit_preprocessor
from fedsim.linkage.direct.groups import AVERAGES, COMMON_CATEGORIES, ROWS, average_features
from fedsim.linkage.direct.token_kinds import PlaceTokens
from fedsim.linkage.direct.token_schema import TokenField, TokenSchema
from fedsim.linkage.encoding import normalise_text
from fedsim.types import Floats, Integers
from fedsim_audit.attacks.attack_finding import MEDIAN_ERROR_METRES
from fedsim_audit.audit_report import AuditSettings
from fedsim_audit.audit_run import audit_job
from fedsim_lab.datasets import load_dataset
from fedsim_lab.datasets.dataset import Dataset
from fedsim_lab.datasets.generated import generate_firms
from fedsim_lab.faults.local_job import RENTALS, create_local_job, small_tables
from linkage_data import DATA

RECORDS, SEEDS = 10_000, (0, 1)
SIZES = (3, 5, 10, 20)
EARTH = 111_200.0  # metres per degree of latitude


def numbers(frame: object, columns: Sequence[str], m: int = 1) -> tuple[Floats, list[tuple[tuple[int, ...], ...]]]:
    """Return prepared columns and their gaps."""
    rules = FeatureRules(seldom=max(2, m), most_one_hot=COMMON_CATEGORIES, codes=False)
    fitted = fit_preprocessor(frame.select(columns), party="bench", rules=rules)  # type: ignore[attr-defined]
    return fitted.apply(frame.select(columns)), fitted.gaps  # type: ignore[attr-defined, return-value]


def explained(columns: Floats, label: Floats) -> float:
    """Return R2 on the fifth of the records that is not trained on, averaged over the seeds."""
    found = []
    for seed in SEEDS:
        order = np.random.default_rng(seed).permutation(len(label))
        train, test = order[len(label) // 5 :], order[: len(label) // 5]
        trees = HistGradientBoostingRegressor(max_iter=200, learning_rate=0.06, random_state=seed)
        error = trees.fit(columns[train], label[train]).predict(columns[test]) - label[test]
        found.append(1.0 - (error**2).mean() / label[test].var())
    return float(np.mean(found))


def grouped(features: object, gaps: object, m: int) -> Floats:
    """Return the vector of every row at level ``rows``."""
    group = ROWS.group([], features, m).group  # type: ignore[arg-type]
    return average_features(features, gaps, group, m).numbers[group].astype(np.float64)  # type: ignore[arg-type]


def matched(case: Dataset, match: Integers) -> Iterator[str]:
    """Yield the share of the contribution that ``rows`` keeps if every record has its exact match, or none."""
    frame, label = case.primary.frame, case.labels
    own = numbers(frame, case.primary.features)[0].numbers
    known = match >= 0

    def with_partner(vectors: Floats) -> Floats:
        return np.column_stack([own, np.where(known[:, None], vectors[match], np.nan)])

    alone = explained(np.column_stack([own, known]), label)
    secondary = case.secondaries[0].table
    exact, gaps = numbers(secondary.frame, secondary.features)
    rows = explained(with_partner(exact.numbers), label)
    kept = []
    for m in SIZES:
        fitted, gaps = numbers(secondary.frame, secondary.features, m)
        kept.append((explained(with_partner(grouped(fitted, gaps, m)), label) - alone) / (rows - alone))
    yield f"{case.name}: alone {alone:.3f}, m = 1 {rows:.3f}, kept at m = {SIZES}: " + " ".join(
        f"{k:.2f}" for k in kept
    )


def metres(places: Floats, latitude: float) -> Floats:
    """Return places in metres on a plane that touches the globe at this latitude."""
    return np.column_stack([places[:, 0], places[:, 1] * np.cos(np.radians(latitude))]) * EARTH


def located(case: Dataset, cell: float, *, with_places: bool, groups: int = 9) -> Iterator[str]:
    """Yield the gain of K nearest rows and of the cells around every record, with placebos."""
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(case.primary.frame))[:RECORDS]
    link, secondary = case.secondaries[0].link, case.secondaries[0].table
    ours = case.primary.frame.select(link.primary).to_numpy().astype(np.float64)[chosen]
    theirs = secondary.frame.select(link.secondary).to_numpy().astype(np.float64)
    if link.primary[0].lower().startswith(("lon", "lng")):
        ours, theirs = ours[:, ::-1], theirs[:, ::-1]
    own = numbers(case.primary.frame, case.primary.features)[0].numbers[chosen].astype(np.float64)
    own = np.column_stack([own, ours]) if with_places else own
    label = case.labels[chosen]
    exact, gaps = numbers(secondary.frame, secondary.features)
    shuffled = rng.permutation(len(theirs))
    alone = explained(own, label)
    latitude = float(theirs[:, 0].mean())
    here, there = metres(ours, latitude), metres(theirs, latitude)

    def nearest(places: Floats, vectors: Floats, k: int) -> Floats:
        distance, at = cKDTree(places).query(here, min(k, len(places)))
        weight = 1.0 / (100.0 + distance)
        mean = (vectors[at] * weight[..., None]).sum(axis=1) / weight.sum(axis=1, keepdims=True)
        return np.column_stack([own, vectors[at[:, 0]], vectors[at[:, :4]].mean(axis=1), mean, distance[:, :4]])

    full = max(explained(nearest(there, exact.numbers, k), label) for k in (4, 8, 20))
    placebo = explained(nearest(there, exact.numbers[shuffled], 20), label)
    name = f"{case.name} {'with' if with_places else 'without'} own places"
    yield f"{name}: alone {alone:.3f}, best of 4, 8, 20 nearest rows {full:.3f}, placebo {placebo:.3f}"
    schema = TokenSchema((TokenField(("lat", "lon"), PlaceTokens(metres=cell)),))
    tokens = schema.row_tokens({"lat": theirs[:, 0].tolist(), "lon": theirs[:, 1].tolist()})
    for m in SIZES:
        features, gaps = numbers(secondary.frame, secondary.features, m)
        grouping = AVERAGES.group(tokens, features, m)
        listing = AVERAGES.list(schema, tokens, grouping)
        kind = schema.fields[0].kind
        middles = metres(kind.middles(listing.tokens[0].tokens.hint), latitude)
        scores = []
        for order in (np.arange(len(theirs)), shuffled):
            averages = average_features(features.take(order), gaps, grouping.group, m).numbers
            scores.append(explained(nearest(middles, averages.astype(np.float64), groups), label))
        lost = (grouping.group < 0).mean()
        error = np.linalg.norm(there - middles[np.maximum(listing.place, 0)], axis=1)[listing.place >= 0]
        yield (
            f"  m = {m}: {len(listing.group)} groups, median error of a place {np.median(error):.0f} m, rows lost "
            f"{lost:.1%}, R2 {scores[0]:.3f} (placebo {scores[1]:.3f}), kept {(scores[0] - alone) / (full - alone):.2f}"
        )


def title_match(case: Dataset) -> Integers:
    """Return the first row with the same normalised title, or -1."""
    link, secondary = case.secondaries[0].link, case.secondaries[0].table
    first: dict[str, int] = {}
    for row, title in enumerate(secondary.frame[link.secondary[0]].to_list()):
        first.setdefault(normalise_text(str(title)), row)
    titles = case.primary.frame[link.primary[0]].to_list()
    return np.array([first.get(normalise_text(str(title)), -1) for title in titles], np.int64)


def attacks() -> Iterator[str]:
    """Yield what the audit finds at every level on 1,500 flats and 3,000 rentals."""
    settings = AuditSettings(targets=100, epochs=1, most_records=3_000)
    for terms in ({"share": "rows", "m": 1}, {"share": "rows"}, {"share": "averages", "m": 5}, {"share": "averages"}):
        with TemporaryDirectory() as folder:
            tables = small_tables(flats=1_500, rentals=3_000)
            place = create_local_job(Path(folder) / "job", direct=True, tables=tables, secondaries={RENTALS: terms})
            report = audit_job(place.job, [place.own(name) for name in place.names], settings)
        yield ", ".join(f"{name} = {value}" for name, value in terms.items())
        for row in report.rows:
            found, median = row.found, row.found.figures.get(MEDIAN_ERROR_METRES)
            error = "" if median is None else f", median error {median:.0f} m"
            guessing = f"guessing {found.blind:.2f}{error}, {row.verdict.name}"
            yield f"  {found.attack}: {found.measure} {found.score}, {guessing}"


def main(argv: Sequence[str] | None = None) -> None:
    """Print the chosen cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=["city", "firms", "films", "vgsales", "house", "hdb"])
    for name in parser.parse_args(argv).cases:
        rng = np.random.default_rng(0)
        if name == "firms":
            drawn = generate_firms(rng)
            lines = matched(drawn.dataset(), drawn.match)
        elif name == "attacks":
            lines = attacks()
        elif name in ("films", "vgsales"):
            case = load_dataset(name, DATA, rng=rng)
            lines = matched(case, title_match(case))
        else:
            case = load_dataset(name, DATA, rng=rng)
            lines = (line for places in (False, True) for line in located(case, 50.0, with_places=places))
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    main()
