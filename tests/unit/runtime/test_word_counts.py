"""A job that links by words: counts of the training table encode later records, and stay where they are."""

from __future__ import annotations

import json
import stat
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from fedsim.cli.app import app
from fedsim.data.table_reader import infer_numbers, read_table
from fedsim.errors import FileError, InputError
from fedsim.linkage.encoding import Key
from fedsim.linkage.link_files import load_encoded
from fedsim.pipeline.party_table import PartyData
from fedsim.protocol.transport import InProcessTransport
from fedsim.runs.run_folder import run_path
from fedsim.runtime.party_context import open_party_context, software_versions
from fedsim.runtime.predictor import Predictor
from fedsim.runtime.run_local import run_local
from fedsim.runtime.run_store import RunStore
from job_fixtures import lay_out, read_all, staying
from session_fixtures import PATIENCE

WORDS = ["Belgor", "Halver", "Tanros", "Miran", "Ultor", "Kelpal", "Sentor", "Dandor", "Norhal", "Elper"]
FIELDS = '  { column = "lat", encoding = { kind = "numeric", low = 0.9, high = 1.8, threshold = 0.05 } },\n'
SECOND = '  { column = "lon", encoding = { kind = "numeric", low = 103.3, high = 104.4, threshold = 0.05 } },\n'
CHANGES = {
    "job": {
        FIELDS: '  { column = "name", encoding = { kind = "words", bits = 512 } },\n',
        SECOND: "",
        "hamming": "dice",
        "tau = 0.05": "tau = 0.4",
    },
    "rentals": {"max_tau = 0.05": "max_tau = 0.4", '"lat", "lon", ': '"name", '},
}


def names(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [
        f"{' '.join(rng.choice(WORDS, 2, replace=False))}{rng.integers(9)} {rng.choice(['Ltd', 'Ltd', 'Inc'])}"
        for _ in range(count)
    ]


@pytest.fixture
def trained(tmp_path: Path):
    lay_out(tmp_path, CHANGES)
    for seed, table in enumerate(("flats", "rentals")):
        frame = pl.read_csv(tmp_path / f"{table}.csv").drop("lat", "lon")
        frame.with_columns(name=pl.Series(names(len(frame), seed))).write_csv(tmp_path / f"{table}.csv")
    job, files = read_all(tmp_path)
    run_local(job, list(files.values()))
    return tmp_path, job, files


def test_counts_are_kept_for_their_owner_alone_and_hold_no_unique_word(trained):
    _, job, files = trained
    for name in ("city", "rentals"):
        path = RunStore(run_path(job, files[name]), job).fit_path("rentals")
        counts = json.loads(path.read_text())["fields"]["0"]["counts"]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert counts["ltd"] > counts["inc"] > 1
        assert min(counts.values()) > 1
    assert not list(Path(files["notary"].folder).rglob("*fit*"))


def test_records_are_encoded_for_predictions_as_in_training(trained):
    _, job, files = trained
    store = RunStore(run_path(job, files["city"]), job)
    data = PartyData.read(job, files["city"])
    encoded = load_encoded(store.encoded_path("rentals"))
    assert (store.encode_new(data.take(np.array([4])), "rentals").bits == encoded.bits[4]).all()
    assert (data.take(np.array([4])).encode("rentals", store.secrets).bits != encoded.bits[4]).any()


def test_one_record_alone_is_predicted_as_among_others(trained):
    folder, job, files = trained
    records, transport = infer_numbers(read_table(folder / "flats.csv")).drop("price"), InProcessTransport()
    with ExitStack() as stack:
        for name in ("notary", "rentals"):
            stack.enter_context(staying(job, files[name], transport))
        post = stack.enter_context(open_party_context(job, files["city"], transport, software_versions()))
        predictor = Predictor(post, wait_seconds=PATIENCE)
        together = predictor.predict(records[:4]).values
        alone = [predictor.predict(records[row : row + 1]).values[0] for row in range(4)]
        assert alone == pytest.approx(together, rel=1e-4)


def test_a_lost_or_foreign_file_of_counts_is_an_error(trained):
    _, job, files = trained
    store = RunStore(run_path(job, files["city"]), job)
    data: PartyData = PartyData.read(job, files["city"])
    path = store.fit_path("rentals")
    path.write_text('{"schema": "another", "fields": {}}')
    with pytest.raises(InputError) as foreign:
        store.encode_new(data, "rentals")
    path.write_text("{")
    with pytest.raises(FileError) as damaged:
        store.encode_new(data, "rentals")
    path.unlink()
    with pytest.raises(FileError) as lost:
        store.encode_new(data, "rentals")
    assert [error.value.code for error in (foreign, damaged, lost)] == [
        "bad-word-counts",
        "damaged-file",
        "not-trained",
    ]


def test_records_that_differ_in_the_order_of_words_are_one_group(trained):
    _, job, files = trained
    data = PartyData.read(job, files["city"])
    frame = pl.concat(
        [data.frame[:2], data.frame[:1].with_columns(name=pl.lit("Ltd, " + data.frame["name"][0].upper()))]
    )
    groups = PartyData(frame, data.columns, data.own, job, "ours").groups
    assert groups[0] == groups[2] != groups[1]


def test_the_encode_command_writes_counts_once_and_uses_them_for_later_records(tmp_path):
    pl.DataFrame({"name": names(60, 0)}).write_csv(tmp_path / "all.csv")
    pl.DataFrame({"name": names(60, 0)[:3]}).write_csv(tmp_path / "later.csv")
    schema = {"version": 1, "fields": [{"column": "name", "encoding": {"kind": "words"}}]}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    Key(bytes(32)).write(tmp_path / "key.hex")
    common = [
        "--schema",
        str(tmp_path / "schema.json"),
        "--key",
        str(tmp_path / "key.hex"),
        "--fit",
        str(tmp_path / "fit.json"),
    ]
    for table in ("all", "later"):
        words = [
            "encode",
            "--table",
            str(tmp_path / f"{table}.csv"),
            *common,
            "--out",
            str(tmp_path / f"{table}.safetensors"),
        ]
        assert CliRunner().invoke(app, words).exit_code == 0
    whole, later = (load_encoded(tmp_path / f"{table}.safetensors") for table in ("all", "later"))
    assert (later.bits == whole.bits[:3]).all()
    assert stat.S_IMODE((tmp_path / "fit.json").stat().st_mode) == 0o600
