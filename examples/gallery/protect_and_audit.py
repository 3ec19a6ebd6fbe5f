# %% [markdown]
# # Protect and audit: what can an attacker learn?
#
# The primary receives similarities, which depend on the partner's identifiers. Noise
# protects them: `tau` bounds how often an attacker guesses the distance behind a
# similarity.

# %%
import tempfile
from pathlib import Path

import numpy as np

from fedsim import Key, NumericFilter, Schema, SchemaField, city, link
from fedsim.config import read_job, read_party_file
from fedsim.privacy.bounds import sigma_for_bound
from fedsim_audit import AuditSettings, audit_job
from fedsim_audit.attacks.similarity_attacks import PrimaryView, distance_attack

town = city(np.random.default_rng(7), flats=400, rentals=300)
ranges = {"lat": (0.9, 1.8), "lon": (103.3, 104.4)}
schema = Schema(
    [
        SchemaField(name, NumericFilter(low, high, threshold=0.05))
        for name, (low, high) in ranges.items()
    ]
)
rng, key = np.random.default_rng(0), Key.generate()
encoded = [
    schema.encode(table, key, rng, table="places")
    for table in (town.flats, town.rentals)
]
plain = link(*encoded, metric="hamming", k=10)
print(plain)

# %% [markdown]
# Attack the same links with more and more noise:

# %%
for tau in (None, 0.1, 0.05, 0.02):
    sigma = 0.0 if tau is None else sigma_for_bound(tau, plain.scale.deviation)
    links = link(*encoded, metric="hamming", k=10, sigma=sigma, seed=1)
    found = distance_attack(PrimaryView.of(links), links.distance)
    score, blind = found.score.value, found.blind
    print(f"tau {tau}, sigma {sigma:.2f}: {score:.1%} guessed, blindly {blind:.1%}")

# %% [markdown]
# That is one attack. `fedsim audit` runs all that apply to a job, by every party that
# could try; in Python it is `audit_job`. A job says what all parties agree on, a party
# file what one of them holds.

# %%
JOB = """
name = "flats"
coordinator = { name = "notary", address = "127.0.0.1:7411" }
primary = { name = "city", address = "127.0.0.1:7412" }
task = { kind = "regression" }
training = { epochs = 2, members = 1 }

[secondaries.rentals]
k = 10
metric = "hamming"
tau = 0.05
schema.version = 1

[[secondaries.rentals.schema.fields]]
column = "lat"
encoding = { kind = "numeric", low = 0.9, high = 1.8, threshold = 0.05 }

[[secondaries.rentals.schema.fields]]
column = "lon"
encoding = { kind = "numeric", low = 103.3, high = 104.4, threshold = 0.05 }
"""
PARTY = 'name = "{}"\nrole = "{}"\nfolder = "run"\ndata = {{ file = "{}" }}\n'
PARTY += 'linkage = {{ key = "linkage.key" }}\n'
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    town.flats.write_csv(folder / "flats.csv")
    town.rentals.write_csv(folder / "rentals.csv")
    key.write(folder / "linkage.key")
    (folder / "job.toml").write_text(JOB)
    city_file = (
        PARTY.format("city", "primary", "flats.csv") + 'label = { column = "price" }'
    )
    (folder / "city.toml").write_text(city_file)
    rentals_file = PARTY.format("rentals", "secondary", "rentals.csv")
    (folder / "rentals.toml").write_text(rentals_file)
    report = audit_job(
        read_job(folder / "job.toml"),
        [read_party_file(folder / f"{party}.toml") for party in ("city", "rentals")],
        AuditSettings(epochs=1, targets=30),  # quick, for a first look
    )
print(report.headline)

# %%
report.plot()
