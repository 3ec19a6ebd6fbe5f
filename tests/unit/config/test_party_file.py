"""The party file: role, paths, columns, and a thousand invalid files."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import get_args

import pytest

from fedsim.config.job import read_job
from fedsim.config.party_file import (
    FeatureSettings,
    PartyFile,
    identifier_columns,
    read_party_file,
    resolve_columns,
)
from fedsim.config.policy import policy_violations
from fedsim.config.toml_file import ConfigFault, ConfigFileError
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


def first_fault(folder: Path, text: str) -> ConfigFault:
    with pytest.raises(ConfigFileError) as caught:
        file_of(folder, text)
    return caught.value.faults[0]


def test_paths_are_relative_to_the_file_that_names_them(tmp_path):
    party_file = file_of(tmp_path, TEXTS["rentals"].replace("linkage.key", "/keys/linkage.key"))
    assert party_file.folder == tmp_path / "rentals-run"
    assert party_file.data.file == tmp_path / "rentals.csv"
    assert party_file.linkage.key == Path("/keys/linkage.key")
    assert party_file.party == Party(Role.SECONDARY, "rentals")
    tracking = file_of(tmp_path, f'tracking = "tensorboard:curves"\n{TEXTS["city"]}').tracking
    assert tracking == f"tensorboard:{tmp_path / 'curves'}"


@pytest.mark.parametrize(
    ("name", "old", "new", "code", "setting"),
    [
        ("notary", "", '\n[data]\nfile = "x.csv"\n', "forbidden-for-role", "data"),
        ("notary", "", '\n[linkage]\nkey = "x"\n', "forbidden-for-role", "linkage"),
        ("notary", "", "\n[features]\ndrop = []\n", "forbidden-for-role", "features"),
        ("notary", "", "\n[policy]\nmin_candidates = 5\n", "forbidden-for-role", "policy.min_candidates"),
        ("rentals", "[linkage]", '[label]\ncolumn = "rent"\n[linkage]', "forbidden-for-role", "label"),
        ("rentals", "[linkage]", '[network]\nlisten = "a:1"\n[linkage]', "forbidden-for-role", "network.listen"),
        ("rentals", "[linkage]", "[identifiers.x]\na = 'b'\n[linkage]", "forbidden-for-role", "identifiers.x"),
        ("rentals", "name =", 'tracking = "tensorboard"\nname =', "forbidden-for-role", "tracking"),
        ("city", "name =", 'tracking = "mlflow"\nname =', "invalid-value", "tracking"),
        ("city", '[label]\ncolumn = "price"', "", "required-for-role", "label"),
        ("city", '["rooms", "storey"]', '["rooms", "rooms"]', "duplicate-name", "features.columns"),
        ("city", "kinds =", 'drop = ["x"]\nkinds =', "columns-and-drop", "features.drop"),
        ("city", '"number"', '"numbers"', "unknown-choice", "features.kinds.rooms"),
        ("city", '"solo"', '"sol"', "unknown-choice", "serving.when_partner_is_away"),
        ("city", "0.0.0.0:50052", "50052", "invalid-address", "network"),
        ("rentals", "[linkage]", '[network]\nproxy = "ftp://a:1"\n[linkage]', "invalid-proxy", "network"),
        ("rentals", "[linkage]", '[network]\nproxy_login = "a"\n[linkage]', "no-proxy", "network.proxy_login"),
        ("rentals", '"secondary"', '"relay"', "unknown-choice", "role"),
        ("city", 'lat = "y"', "lat = 3", "invalid-column-name", "identifiers.lat"),
        ("rentals", "max_tau = 0.01", "max_tau = 2", "invalid-value", "policy.max_tau"),
        ("rentals", "max_tau = 0.01", 'approve = ["abc"]', "invalid-value", "policy.approve.0"),
        ("rentals", 'role = "secondary"', 'role = "second"', "unknown-choice", "role"),
        ("rentals", 'role = "secondary"', 'role = "secondary"\ndevice = "gpu"', "unknown-choice", "device"),
        ("rentals", '"rentals.csv"', '""', "invalid-path", "data.file"),
    ],
)
def test_a_fault_has_a_code_and_the_setting(tmp_path, name, old, new, code, setting):
    fault = first_fault(tmp_path, TEXTS[name].replace(old, new, 1) if old else TEXTS[name] + new)
    assert (fault.code, fault.setting) == (code, setting)


@pytest.mark.parametrize("scheme", ["", "env:"])
def test_a_key_in_the_file_is_refused_and_not_shown(tmp_path, scheme):
    secret = "ec2e75" * 11
    fault = first_fault(tmp_path, TEXTS["rentals"].replace("linkage.key", f"{scheme}{secret}"))
    assert (fault.code, fault.setting) == ("key-as-path", "linkage.key")
    assert secret[:12] not in fault.message


def test_keys_and_certificates_may_be_in_the_environment_or_a_key_server(tmp_path):
    text = TEXTS["rentals"].replace("linkage.key", "env:FEDSIM_KEY").replace("certs/ca.pem", "env:CA")
    found = file_of(tmp_path, text.replace("certs/secondary-rentals.key", "vault:kv/rentals#key"))
    assert str(found.linkage.key) == "env:FEDSIM_KEY"
    assert [str(source) for source in (found.tls.authority, found.tls.key)] == ["env:CA", "vault:kv/rentals#key"]
    assert first_fault(tmp_path, TEXTS["rentals"].replace("linkage.key", "vault:kv/rentals")).code == "bad-reference"


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


def test_a_missing_column_is_answered_with_the_nearest_one(tmp_path):
    rentals = file_of(tmp_path, TEXTS["rentals"].replace('"latitude"', '"latitud"'))
    with pytest.raises(InputError, match="latitude") as caught:
        resolve_columns(JOB, rentals, HEADER)
    assert (caught.value.code, caught.value.column) == ("missing-column", "latitud")


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ('name = "rentals"', 'name = "rental"', "not-a-party"),
        ('lat = "latitude"', 'latt = "latitude"', "unknown-column"),
        ('drop = ["id"]', 'columns = ["rent"]\nkinds = { rnt = "date" }', "unknown-column"),
        ('drop = ["id"]', "columns = []", "no-features"),
    ],
)
def test_a_file_that_does_not_fit_the_job_is_refused(tmp_path, old, new, code):
    with pytest.raises(SettingError) as caught:
        resolve_columns(JOB, file_of(tmp_path, TEXTS["rentals"].replace(old, new)), HEADER)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [('lat = "y"', 'lat = "price"', "label-is-identifier"), ('"storey"]', '"price"]', "label-is-feature")],
)
def test_the_label_is_neither_identifier_nor_feature(tmp_path, old, new, code):
    with pytest.raises(SettingError) as caught:
        resolve_columns(JOB, file_of(tmp_path, TEXTS["city"].replace(old, new)))
    assert caught.value.code == code


def test_the_kinds_of_columns_are_those_of_the_data_package():
    from fedsim.cells import FEATURE_TYPES  # noqa: PLC0415

    kinds = get_args(FeatureSettings.model_fields["kinds"].annotation)[1]
    assert set(get_args(kinds)) == set(FEATURE_TYPES)


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
def test_thousands_of_invalid_files_give_a_one_line_error_and_never_a_traceback(tmp_path, name):
    chance = random.Random(20)  # noqa: S311
    text = TEXTS[name] if name in TEXTS else (GOLDEN / "job.toml").read_text(encoding="utf-8")
    path, messages = tmp_path / "file.toml", []
    for _ in range(1_000):
        path.write_text(mutant(text, chance), encoding="utf-8")
        try:
            if name == "job":
                assert len(read_job(path).hash) == 64
            else:
                policy_violations(JOB, read_party_file(path), 10)
        except FedSimError as error:
            messages.append(str(error))
    assert len(messages) > 500
    assert not any("\n" in message for message in messages)
