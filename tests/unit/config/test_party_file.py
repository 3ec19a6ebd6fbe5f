"""A party's own file: its role, its paths, its columns, and a thousand broken ones."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import get_args

import pytest

from fedsim.config.job import read_job
from fedsim.config.party_columns import identifier_columns, resolve_columns
from fedsim.config.party_file import HardeningWord, KindWord, PartyFile, read_party_file
from fedsim.config.policy import policy_violations
from fedsim.errors import FedSimError, InputError, SettingError
from fedsim.protocol.messages import Party, Role

GOLDEN = Path(__file__).parents[2] / "golden"
TEXTS = {name: (GOLDEN / f"job_{name}.toml").read_text(encoding="utf-8") for name in ("city", "rentals", "notary")}
JOB = read_job(GOLDEN / "job.toml")
HEADER = ["id", "latitude", "lon", "rooms", "rent"]


def file_of(folder: Path, text: str) -> PartyFile:
    path = folder / "party.toml"
    path.write_text(text, encoding="utf-8")
    return read_party_file(path)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(SettingError) as caught:
        file_of(folder, text)
    return str(caught.value).replace(f"{folder}/", "")


def test_paths_are_relative_to_the_file_that_names_them(tmp_path):
    party_file = file_of(tmp_path, TEXTS["rentals"].replace("linkage.key", "/keys/linkage.key"))
    assert party_file.folder == tmp_path / "rentals-run"
    assert party_file.data.file == tmp_path / "rentals.csv"
    assert party_file.linkage.key == Path("/keys/linkage.key")
    assert party_file.party == Party(Role.SECONDARY, "rentals")


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        ("notary", "\n", '\n[data]\nfile = "x.csv"\n', "data: the coordinator must not hold data, features, labels"),
        ("notary", "\n", '\n[linkage]\nkey = "x"\n', "linkage: the coordinator must not hold"),
        ("notary", "\n", "\n[features]\ndrop = []\n", "features: the coordinator must not hold"),
        ("notary", "\n", "\n[policy]\nmin_candidates = 5\n", "policy.min_candidates: a coordinator has no records"),
        ("rentals", "[linkage]", '[label]\ncolumn = "rent"\n[linkage]', "line 19: label: only the primary has labels"),
        ("rentals", "[linkage]", '[network]\nlisten = "a:1"\n[linkage]', "network.listen: a secondary only dials out"),
        ("rentals", "[linkage]", "[identifiers.x]\na = 'b'\n[linkage]", "identifiers.x: a secondary is linked once"),
        ("rentals", '[linkage]\nkey = "linkage.key"', "", "linkage: a secondary needs this section; add it"),
        ("city", '[label]\ncolumn = "price"', "", "label: a primary needs this section; add it"),
        ("city", '["rooms", "storey"]', '["rooms", "rooms"]', "line 18: features.columns: 'rooms' stands there twice"),
        ("city", "kinds =", 'drop = ["x"]\nkinds =', "line 19: features.drop: both columns and drop are given"),
        ("city", '"number"', '"numbers"', "features.kinds.rooms is 'numbers'; did you mean 'number'?"),
        ("city", '"solo"', '"sol"', "serving.when_partner_is_away is 'sol'; did you mean 'solo'?"),
        ("city", "0.0.0.0:50052", "50052", "network: '50052' is no address"),
        ("city", 'lat = "y"', "lat = 3", "line 11: identifiers.lat: give the name of a column"),
        ("rentals", "max_tau = 0.01", "max_tau = 2", "line 23: policy.max_tau is 2; give a number above 0 and up to 1"),
        ("rentals", "max_tau = 0.01", "min_k = 5\nmax_k = 4", "line 23: policy.min_k: min_k is 5 and max_k 4"),
        ("rentals", "max_tau = 0.01", 'hardening = ["balanced"]', "is 'balanced'; did you mean 'balance'?"),
        ("rentals", "max_tau = 0.01", 'approve = ["abc"]', "give a list of job hashes, each of 12 to 64 digits"),
        ("rentals", 'role = "secondary"', 'role = "second"', "line 2: role is 'second'; did you mean 'secondary'?"),
        ("rentals", '"rentals.csv"', '""', "line 11: data.file: this is no path"),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(tmp_path, name, old, new, told):
    assert told in refusal(tmp_path, TEXTS[name].replace(old, new, 1) if name != "notary" else TEXTS[name] + new)


def test_a_key_written_into_the_file_is_refused_and_not_shown(tmp_path):
    secret = "5ec2e7" * 11
    told = refusal(tmp_path, TEXTS["rentals"].replace("linkage.key", secret))
    assert "line 20: linkage.key: this looks like a key itself" in told
    assert secret[:12] not in told


def test_identifiers_may_differ_by_secondary(tmp_path):
    city = file_of(tmp_path, TEXTS["city"])
    assert identifier_columns(JOB, city, "rentals") == {"lat": "y", "lon": "lon"}
    assert identifier_columns(JOB, city, "schools") == {"name": "school", "founded": "built"}


def test_features_are_what_is_left_of_the_table(tmp_path):
    rentals = file_of(tmp_path, TEXTS["rentals"])
    assert resolve_columns(JOB, rentals).features is None
    assert resolve_columns(JOB, rentals, HEADER).features == ("rooms", "rent")
    fenced = TEXTS["rentals"] + 'columns = ["latitude", "lon", "rent"]\n'
    assert resolve_columns(JOB, file_of(tmp_path, fenced), HEADER).features == ("rent",)


def test_a_column_that_is_missing_is_told_with_the_nearest(tmp_path):
    rentals = file_of(tmp_path, TEXTS["rentals"].replace('"latitude"', '"latitud"'))
    with pytest.raises(InputError, match="there is no column 'latitud' among its 5; did you mean 'latitude'"):
        resolve_columns(JOB, rentals, HEADER)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            'name = "rentals"',
            'name = "rental"',
            "does not take part in job 'flats', whose secondary is rentals or school",
        ),
        (
            'lat = "latitude"',
            'latt = "latitude"',
            "identifiers names 'latt', which is unknown here; did you mean 'lat'",
        ),
        ('drop = ["id"]', 'columns = ["rent"]\nkinds = { rnt = "date" }', "kinds names 'rnt', which .* mean 'rent'"),
        ('drop = ["id"]', "columns = []", "no column is left as a feature"),
    ],
)
def test_a_file_that_does_not_fit_the_job_is_refused(tmp_path, old, new, told):
    with pytest.raises(SettingError, match=told):
        resolve_columns(JOB, file_of(tmp_path, TEXTS["rentals"].replace(old, new)), HEADER)


def test_the_label_is_neither_identifier_nor_feature(tmp_path):
    for old, new in (('lat = "y"', 'lat = "price"'), ('"storey"]', '"price"]')):
        with pytest.raises(SettingError, match="the label is"):
            resolve_columns(JOB, file_of(tmp_path, TEXTS["city"].replace(old, new)))


def test_the_words_are_those_of_data_and_encoding():
    from fedsim.data.columns import ColumnKind  # noqa: PLC0415
    from fedsim.linkage.encoding.schema import HARDENINGS  # noqa: PLC0415

    assert set(get_args(KindWord)) == set(ColumnKind)
    assert set(get_args(HardeningWord)) == set(HARDENINGS)


ODD = [
    "'",
    '"',
    '"""',
    "[",
    "]",
    "{",
    "}",
    "=",
    ".",
    "\n",
    "#",
    "nan",
    "-1",
    "true",
    "1979-05-27",
    "[]",
    "{}",
    "{a={b=1}}",
]
ODD += [
    "0x" + "f" * 5000,
    "9" * 5000,
    "[[a]]",
    "a.b=1",
    "\0",
    '"\\u0000"',
    "é",
    '""',
    '"schema"',
    "salt='x'",
    "['a', 1]",
]


def mutant(text: str, chance: random.Random) -> str:
    """The text with up to three places cut, doubled, or replaced by something odd."""
    for _ in range(chance.randint(1, 3)):
        words = list(re.finditer(r"[\w.]+|\S|\n", text)) or [re.match("", text)]
        place = chance.choice(words)
        value = re.compile(r"= *(.*)").search(text, chance.randrange(len(text) + 1)) or place
        start, end = chance.choice([place.span(), (place.start(), place.start()), value.span(value.lastindex or 0)])
        text = text[:start] + chance.choice([*ODD, "", chance.choice(words)[0]]) + text[end:]
    return text


@pytest.mark.parametrize("name", ["job", "city", "rentals", "notary"])
def test_thousands_of_broken_files_give_one_sentence_each_and_never_a_traceback(tmp_path, name):
    chance = random.Random(20)  # noqa: S311
    text = TEXTS[name] if name in TEXTS else (GOLDEN / "job.toml").read_text(encoding="utf-8")
    path, told = tmp_path / "file.toml", []
    for _ in range(1_000):
        path.write_text(mutant(text, chance), encoding="utf-8")
        try:
            if name == "job":
                assert len(read_job(path).hash) == 64
            else:
                policy_violations(JOB, read_party_file(path), 10)
        except FedSimError as error:
            told.append(str(error))
    assert len(told) > 500
    assert not any("\n" in sentence for sentence in told)
