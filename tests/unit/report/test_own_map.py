"""A map of the primary's places, by whatever names latitude and longitude were agreed on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedsim.linkage.private_linkage import load_private_links
from fedsim.report.charts import grid_map_figure
from fedsim.report.run_data import read_run
from fedsim.report.run_report import location_map_figures, write_report
from fedsim.runs.run_folder import run_path
from fedsim.runtime.run_local import run_local
from job_fixtures import lay_out, read_all

NAMES = [("lat", "lon", False), ("start_lat", "start_lon", True), ("Latitude", "Longitude", False)]


@pytest.mark.parametrize(("lat", "lon", "blurred"), NAMES)
def test_whatever_links_as_a_place_is_drawn_and_blurred_as_in_the_job(
    tmp_path: Path, lat: str, lon: str, *, blurred: bool
) -> None:
    called = "" if lat == "lat" else f'[identifiers]\n{lat} = "lat"\n{lon} = "lon"\n\n'
    own = {"[linkage]": f"{called}[linkage]"}
    blur = f'\nblur = {{ latitude = "{lat}", longitude = "{lon}", epsilon_per_km = 1 }}' if blurred else ""
    job = {'column = "lat"': f'column = "{lat}"', 'column = "lon"': f'column = "{lon}"', "epochs = 2": "epochs = 1"}
    lay_out(tmp_path, {"job": {**job, "k = 5": f"k = 5{blur}"}, "city": own, "rentals": own})
    agreed, files = read_all(tmp_path)
    run_local(agreed, list(files.values()))
    folder = run_path(agreed, files["city"])
    assert "--map" in write_report(folder).read_text(encoding="utf-8")
    page = write_report(folder, mapped=files["city"]).read_text(encoding="utf-8")
    assert "Similarity on the map: rentals" in page
    (drawn,) = location_map_figures(read_run(folder), files["city"])
    places = pl.read_csv(tmp_path / "flats.csv").select("lat", "lon").to_numpy()
    similarity = load_private_links(folder / "lists" / "rentals.safetensors").overall[:, 0].astype(np.float64)
    plain = grid_map_figure(places, similarity, title="", caption="")
    assert plain is not None
    assert (drawn.rows != plain.rows) == blurred
