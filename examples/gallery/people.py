# %% [markdown]
# # People: encoded names and birth dates
#
# A registry and a clinic must not show each other whom they know. Both encode name,
# birth date and street with one secret key; a coordinator without the key compares
# the encodings.

# %%
from datetime import date, timedelta

import numpy as np

from fedsim import DateFilter, Key, Schema, SchemaField, StringFilter, link

rng = np.random.default_rng(3)
FIRST = ["Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hans", "Ida"]
LAST = ["Becker", "Fischer", "Hoffmann", "Keller", "Meyer", "Neumann", "Peters", "Wolf"]
STREET = ["Mill Road", "Oak Lane", "Harbour Street", "Station Road", "High Street"]


def misspell(text: str) -> str:
    """Swap two letters, as typists do."""
    at = int(rng.integers(0, len(text) - 1))
    return text[:at] + text[at + 1] + text[at] + text[at + 2 :]


n_people = 300
registry = {
    "name": [f"{rng.choice(FIRST)} {rng.choice(LAST)}" for _ in range(n_people)],
    "born": [
        date(1930, 1, 1) + timedelta(days=int(day))
        for day in rng.integers(0, 32_000, n_people)
    ],
    "street": [f"{rng.integers(1, 99)} {rng.choice(STREET)}" for _ in range(n_people)],
}
order = rng.permutation(n_people)
clinic = {column: [values[row] for row in order] for column, values in registry.items()}
clinic["name"] = [
    misspell(name) if rng.random() < 0.4 else name for name in clinic["name"]
]
clinic["street"] = [
    misspell(street) if rng.random() < 0.4 else street for street in clinic["street"]
]
for row in range(3):
    print(registry["name"][order[row]], "is", clinic["name"][row], "at the clinic")

# %% [markdown]
# The schema says how each column is encoded; the key stays with the two offices.

# %%
fields = [
    SchemaField("name", StringFilter()),
    SchemaField(
        "born", DateFilter(date(1900, 1, 1), date(2030, 12, 31), threshold=365)
    ),
    SchemaField("street", StringFilter()),
]
truth, key = np.argsort(order), Key.generate()
schema = Schema(fields)
encoded = [schema.encode(table, key, table="people") for table in (registry, clinic)]
links = link(*encoded, metric="hamming", k=5)
first = (links.partner[:, 0] == truth).mean()
print(f"{schema.n_bits} bits: {first:.0%} of the people are found first")
