"""A map of the primary's places, by whatever names latitude and longitude were agreed on."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.report.run_report import write_report
from fedsim.runs.run_folder import run_path
from fedsim.runtime.run_local import run_local
from job_fixtures import lay_out, read_all


@pytest.mark.parametrize(("lat", "lon"), [("lat", "lon"), ("start_lat", "start_lon"), ("Latitude", "Longitude")])
def test_whatever_links_as_a_place_can_be_drawn(tmp_path: Path, lat: str, lon: str) -> None:
    called = "" if lat == "lat" else f'[identifiers]\n{lat} = "lat"\n{lon} = "lon"\n\n'
    own = {"[linkage]": f"{called}[linkage]"}
    job = {'column = "lat"': f'column = "{lat}"', 'column = "lon"': f'column = "{lon}"', "epochs = 2": "epochs = 1"}
    lay_out(tmp_path, {"job": job, "city": own, "rentals": own})
    agreed, files = read_all(tmp_path)
    run_local(agreed, list(files.values()))
    folder = run_path(agreed, files["city"])
    assert "--map" in write_report(folder).read_text(encoding="utf-8")
    page = write_report(folder, mapped=files["city"]).read_text(encoding="utf-8")
    assert "Similarity on the map: rentals" in page
