# %% [markdown]
# # Places: flats and the rentals around them
#
# A city knows its flats and their prices, an agency what flats nearby are let for. No
# flat is in both tables, so every flat is linked to the rentals nearest to it.

# %%
import numpy as np

from fedsim import (
    FedSimRegressor,
    city,
    diagnose,
    group_equal_records,
    group_split,
    link,
)

town = city(np.random.default_rng(7), flats=600, rentals=400)
place = ["lat", "lon"]
links = link(
    town.flats.select(place), town.rentals.select(place), metric="great-circle", k=8
)
print(links)
print(diagnose(links))

# %% [markdown]
# What do the rentals add? Compare with the flats alone, with their own place as a
# feature, and with rentals whose columns are shuffled, which keeps the links and
# removes what the agency knows. No building is on both sides.

# %%
flats, price = town.flats.drop("price"), town.flats["price"]
split = group_split(group_equal_records(flats.select(place)), np.random.default_rng(0))
known = np.sort(np.concatenate([split.train, split.validation]))
shuffled = town.rentals.with_columns(
    town.rentals.drop(place).sample(fraction=1.0, shuffle=True, seed=0)
)
quick = {
    "k": 8,
    "epochs": 10,
    "batch_size": 64,
    "members": 1,
    "learning_rate": 6e-3,
    "random_state": 0,
}
models = {
    "flats alone": FedSimRegressor(link_on=place, **quick),
    "flats with their place": FedSimRegressor(
        link_on=place, use_identifiers=True, **quick
    ),
    "flats and shuffled rentals": FedSimRegressor([shuffled], place, **quick),
    "flats and rentals": FedSimRegressor([town.rentals], place, **quick),
}
for name, model in models.items():
    model.fit(flats[known], price[known])
    print(f"{name:27} R2 {model.score(flats[split.test], price[split.test]):.2f}")

# %% [markdown]
# Why is one flat predicted as it is?

# %%
row = int(split.test[0])
(why,) = model.explain(flats[[row]])
why.plot(truth=price[row])
