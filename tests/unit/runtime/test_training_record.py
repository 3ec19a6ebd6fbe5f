"""Records without a label, a split by time and a label on a log scale, in a job that runs in this process."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from fedsim.config.party_file import resolve_columns
from fedsim.errors import SettingError
from fedsim.runs.record import UNLABELLED_FILE, read_run_record, read_test_predictions
from fedsim.runs.run_folder import run_path
from fedsim.runtime.run_local import run_local
from job_fixtures import lay_out, read_all

BY_TIME = {'split = "random"': 'split = "time"'}
LOG = {'kind = "regression"': 'kind = "regression"\nlabel_scale = "log"'}
SOLD = {'column = "price"': 'column = "price"\nsplit_by = "sold"'}


def add_dates(folder: Path, without_label: int = 0) -> None:
    flats = pl.read_csv(folder / "flats.csv")
    day = pl.date(2020, 1, 1) + pl.duration(days=pl.int_range(pl.len()))
    price = pl.when(pl.int_range(pl.len()) >= without_label).then(pl.col("price"))
    flats.with_columns(sold=day, price=price).write_csv(folder / "flats.csv")


def test_records_without_a_label_are_predicted_after_training(tmp_path: Path) -> None:
    lay_out(tmp_path, {"job": BY_TIME | LOG, "city": SOLD}, flats=120)
    add_dates(tmp_path, without_label=20)
    job, files = read_all(tmp_path)
    outcome = run_local(job, list(files.values())).outcome
    folder = run_path(job, files["city"])
    predicted = pl.read_csv(folder / UNLABELLED_FILE)
    assert predicted["row"].to_list() == list(range(1, 21))
    assert (predicted["prediction"] > 0).all()
    assert outcome.unlabelled == read_run_record(folder).table.unlabelled == 20
    assert set(outcome.metrics["test"]) == {"rmse", "r2", "mae", "rmse_log"}
    assert read_test_predictions(folder)["row"].to_list() == list(range(100, 120))  # the newest


def test_a_job_that_splits_by_time_needs_the_name_of_the_column(tmp_path: Path) -> None:
    lay_out(tmp_path, {"job": BY_TIME})
    job, files = read_all(tmp_path, approved=False)
    with pytest.raises(SettingError) as refused:
        resolve_columns(job, files["city"])
    assert refused.value.code == "no-split-column"
