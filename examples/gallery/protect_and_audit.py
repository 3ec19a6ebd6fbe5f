# %% [markdown]
# # Protect and audit: what can an attacker learn?
#
# Two organisations link directly: the city has the tokens of its flats evaluated, and
# opens the rows of the agency's encrypted table that they reach. `fedsim audit` runs
# the attacks that remain on the tables of a job; in Python it is `audit_job`.

# %%
import tempfile
from pathlib import Path

import numpy as np

from fedsim import generate_city
from fedsim.config import read_job, read_party_file
from fedsim_audit import AuditSettings, audit_job

town = generate_city(np.random.default_rng(7), flats=400)

# %% [markdown]
# A job says what both agree on, a party file what one of them holds. Larger cells show
# less of where a rental is, and find less.

# %%
JOB = """
name = "flats"
primary = {{ name = "city", address = "127.0.0.1:7412" }}
task = {{ kind = "regression" }}
training = {{ epochs = 2, members = 1 }}

[secondaries.rentals]
k = 10
max_tokens = 20_000
tokens = [{{ columns = ["lat", "lon"], kind = "place", metres = {metres} }}]
"""
PARTY = 'name = "{}"\nrole = "{}"\nfolder = "run"\ndata = {{ file = "{}" }}\n'


def audit(metres: int):
    """Audit a job with cells of this size."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        town.flats.write_csv(folder / "flats.csv")
        town.rentals.write_csv(folder / "rentals.csv")
        (folder / "job.toml").write_text(JOB.format(metres=metres))
        city = PARTY.format("city", "primary", "flats.csv")
        (folder / "city.toml").write_text(city + 'label = { column = "price" }')
        rentals = PARTY.format("rentals", "secondary", "rentals.csv")
        (folder / "rentals.toml").write_text(rentals)
        files = [read_party_file(folder / f"{one}.toml") for one in ("city", "rentals")]
        quick = AuditSettings(epochs=1, targets=30)  # for a first look
        return audit_job(read_job(folder / "job.toml"), files, quick)


# %%
reports = {metres: audit(metres) for metres in (100, 1000)}
for metres, report in reports.items():
    print(f"cells of {metres} metres: {report.headline}")

# %% [markdown]
# What every attack finds, from guessing to certainty:

# %%
reports[100].plot()
