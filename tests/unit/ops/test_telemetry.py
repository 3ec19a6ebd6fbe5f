"""Metrics and logs of a party: bounded, without the text of foreign exceptions, and only if wanted."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from fedsim.errors import InputError, SettingError
from fedsim_ops.telemetry import (
    MAX_LABELS,
    METRICS,
    JsonLogFormatter,
    LabelCounter,
    MetricSample,
    TimeHistogram,
    serve_metrics,
)
from telemetry_fixtures import scrape, values


def written(**record):
    made = logging.LogRecord("fedsim.parties", record.pop("level", logging.INFO), "f", 1, **record)
    made.party = "city"
    return json.loads(JsonLogFormatter("5e" * 32).format(made))


def raised(error):
    try:
        raise error
    except type(error):
        return sys.exc_info()


def test_a_log_line_is_one_object_with_party_job_and_phase():
    line = written(msg="epoch %d\nof %d", args=(1, 8), exc_info=None)
    assert (line["level"], line["party"], line["job"], line["phase"]) == ("info", "city", "5e5e5e5e5e5e", "join")
    assert line["message"] == "epoch 1\nof 8"
    assert line["time"].endswith("+00:00")


def test_the_text_of_an_exception_that_is_not_ours_is_not_written():
    foreign = written(msg="failed", args=(), exc_info=raised(KeyError("Ada Lovelace")))
    assert "Ada" not in json.dumps(foreign)
    assert foreign["traceback"][-1] == "KeyError"
    own = written(msg="failed", args=(), level=logging.ERROR, exc_info=raised(InputError("row 3", code="bad-cell")))
    assert own["traceback"][-1] == "InputError: row 3"
    assert own["fields"] == {"code": "bad-cell"}


def test_a_label_has_a_bounded_number_of_values():
    counter = LabelCounter()
    for number in range(10 * MAX_LABELS):
        counter.add(f"code-{number}")
    found = {sample.labels: sample.value for sample in counter.samples("fedsim_errors_total")}
    assert len(found) == MAX_LABELS + 1
    assert found["other",] == 9 * MAX_LABELS


def test_metrics_are_served_as_prometheus_reads_them_until_the_block_ends():
    times = TimeHistogram([0.1, 1])
    for seconds in (0.05, 0.1, 0.5, 7):
        times.add(seconds)
    shown = [MetricSample("fedsim_step_seconds", times), MetricSample("fedsim_errors_total", 3, ('a "b"\n',))]
    with serve_metrics("127.0.0.1:0", lambda: shown) as url:
        address = url.removeprefix("http://").removesuffix("/metrics")
        found = scrape(address)
        with pytest.raises(SettingError) as refused, serve_metrics(address, lambda: shown):
            pass
    assert refused.value.code == "cannot-listen"
    assert values(found, "fedsim_errors_total") == {('a "b"\n',): 3}
    assert values(found, "fedsim_step_seconds_bucket") == {("0.1",): 2, ("1",): 3, ("+Inf",): 4}
    assert values(found, "fedsim_step_seconds_sum") == {(): pytest.approx(7.65)}
    assert scrape(address) == b""


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(SettingError, match=r"fedsim-vfl\[telemetry\]") as missing, serve_metrics("127.0.0.1:0", list):
        pass
    assert (missing.value.code, missing.value.package) == ("missing-package", "prometheus_client")


def test_a_party_without_the_section_imports_nothing_of_it():
    script = (
        "import sys, fedsim.cli.party, fedsim.cli.results, fedsim.runtime.coordinator\n"
        "print(*{'prometheus_client', 'fedsim_ops.telemetry'} & set(sys.modules))"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert loaded.stdout == "\n"


def test_names_and_labels_follow_the_rules_of_prometheus():
    for name, doc in METRICS.items():
        assert name.startswith("fedsim_")
        assert name.endswith("_total") == (doc.kind == "counter"), name
        assert name.endswith("seconds") or doc.kind != "histogram", name
