# %% [markdown]
# # Names: two registers of companies
#
# A bank grants credits, a register knows margins and payment delays. The same company
# is spelled differently in both, and three of ten are in one register only.

# %%
import numpy as np

from fedsim import FedSimRegressor, link
from fedsim_lab.datasets.generated import generate_firms

registers = generate_firms(np.random.default_rng(1), ours=500, theirs=900)
ours, theirs, match = registers.ours, registers.theirs, registers.match
links = link(ours["name"], theirs["name"], metric="qgram-dice", k=5)
print(links)
for row in (0, 1, 2):
    partner = int(links.partner[row, 0])
    print(
        f"{links.distance[row, 0]:.2f} {ours['name'][row]} - {theirs['name'][partner]}"
    )

# %% [markdown]
# How good are the links? The truth is known here: the companies that both registers
# have.

# %%
known = match >= 0
first = (links.partner[known, 0] == match[known]).mean()
among = (links.partner[known] == match[known, None]).any(axis=1).mean()
print(f"{first:.1%} of the shared companies come first, {among:.1%} among the five")

# %% [markdown]
# The network learns how similar a name must be. `find_matches` returns which company
# it takes for the same one, if any, and how sure it is.

# %%
companies, credit = ours.drop("credit"), ours["credit"]
for name, tables in {"bank alone": [], "bank and register": [theirs]}.items():
    model = FedSimRegressor(
        tables, ["name"], k=5, epochs=15, batch_size=32, members=1, random_state=0
    )
    model.fit(companies[:400], credit[:400])
    print(f"{name:18} R2 {model.score(companies[400:], credit[400:]):.2f}")
(found,) = model.find_matches(companies[400:])
for name, rows in {"shared": known[400:], "not in the register": ~known[400:]}.items():
    print(f"{name:20} a match is taken for {(found.taken[rows] >= 0).mean():.0%}")
