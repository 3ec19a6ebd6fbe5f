# %% [markdown]
# # Several partners: what is each of them worth?
#
# Flats with their prices, rentals of one partner and schools of another. The
# generator knows how much of the price each partner can explain, so that the answer
# can be checked.

# %%
import numpy as np

from fedsim import FedSimRegressor, generate_city

town = generate_city(np.random.default_rng(0), flats=1_000)
flats, price = town.flats.drop("price"), town.flats["price"]
place = ["lat", "lon"]
partners = {"rentals": town.rentals, "schools": town.schools}

# %% [markdown]
# One model per group of partners. Places of the primary are features in all of them,
# as a partner must add to what the primary could know alone. The best possible error
# is an average; on 200 records the error of a model varies by about 5 %.

# %%
quick = {"k": 4, "epochs": 12, "batch_size": 64, "members": 1, "random_state": 0}
models, errors = {}, {}
for group in ([], ["rentals"], ["schools"], ["rentals", "schools"]):
    model = FedSimRegressor(
        [partners[name] for name in group],
        [place] * len(group) or place,
        use_identifiers=True,
        **quick,
    )
    found = model.fit(flats[:800], price[:800]).predict(flats[800:])
    name = " and ".join(group) or "nobody"
    models[name] = model
    errors[name] = np.sqrt(np.mean((found - price[800:].to_numpy()) ** 2))
    best = town.truth.error("place", *group)
    print(f"with {name:19} RMSE {errors[name]:.1f}, the best possible {best:.1f}")

# %% [markdown]
# The Shapley value of a partner is its average gain over all orders in which partners
# could join; with two of them:

# %%
alone, both = errors["nobody"], errors["rentals and schools"]
for name, other in (("rentals", "schools"), ("schools", "rentals")):
    gain = ((alone - errors[name]) + (errors[other] - both)) / 2
    print(f"{name} lower the error by {gain:.1f}")

# %% [markdown]
# Every prediction says which partner moved it:

# %%
(why,) = models["rentals and schools"].explain(flats[800:801])
why.plot(truth=price[800])
