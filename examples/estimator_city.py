"""Flat prices from nearby rentals: what linked records add, and what of it the flats could have had alone."""

from __future__ import annotations

import numpy as np
import torch

from fedsim import FedSimRegressor
from fedsim.data.splits import group_equal_records, group_split
from fedsim.data.synthetic import city

PLACE = ["lat", "lon"]
SETTINGS = {"k": 6, "epochs": 6, "batch_size": 64, "learning_rate": 4e-3, "device": "cpu", "random_state": 0}


def main() -> None:
    torch.set_num_threads(1)  # networks this small lose more to waiting threads than they gain
    rng = np.random.default_rng(7)
    town = city(rng, flats=2_000, rentals=800)
    flats, price = town.flats.drop("price"), town.flats["price"]
    split = group_split(group_equal_records(flats.select(PLACE)), rng)  # no building on both sides
    known = np.sort(np.concatenate([split.train, split.validation]))
    shuffled = town.rentals.with_columns(town.rentals.drop(PLACE).sample(fraction=1.0, shuffle=True, seed=0))
    ladder = {
        "alone": FedSimRegressor(link_on=PLACE, **SETTINGS),
        "alone, with its own place": FedSimRegressor(link_on=PLACE, use_identifiers=True, **SETTINGS),
        "with the nearest rental": FedSimRegressor([town.rentals], PLACE, method="top1sim", **SETTINGS),
        "with six rentals": FedSimRegressor([town.rentals], PLACE, **SETTINGS),
        "with six rentals, features shuffled": FedSimRegressor([shuffled], PLACE, **SETTINGS),
    }
    for name, model in ladder.items():
        model.fit(flats[known], price[known])
        print(f"{name:36} R2 on unseen buildings {model.score(flats[split.test], price[split.test]):.2f}")


if __name__ == "__main__":
    main()
