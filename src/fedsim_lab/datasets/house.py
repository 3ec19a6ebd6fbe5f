"""Home sales in Beijing and nearby Airbnb listings (paper: house)."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from fedsim_lab.datasets import cleaning, dataset, paper_scores

LABEL = "totalPrice"
PLACE = ("lat", "lon")
PLAIN = ("Cid", "followers", "square", "kitchen", "ladderRatio", "elevator", "fiveYearsProperty", "subway")
# These contain words beside the digits, or an error value of a spreadsheet.
DIRTY_NUMBERS = ("livingRoom", "drawingRoom", "bathRoom", "floor", "constructionTime")
CATEGORIES = {
    "district": "did",
    "buildingType": "bt",
    "renovationCondition": "rc",
    "buildingStructure": "bs",
    "trade_year": "ty",
    "trade_month": "tm",
}
DROPPED = {
    "url": "a name, different in every row",
    "id": "a name, different in every row",
    "price": "the label by the square metre",
    "communityAverage": "the label, averaged over the place; its gaps cost rows, as with the authors",
    "tradeTime": "year and month are kept",
}

HOUSE_INFO = dataset.DatasetInfo(
    name="house",
    title="homes in Beijing, Airbnb listings",
    task=dataset.DatasetTask.REGRESSION,
    measure="rmse",
    unit="10,000 CNY",
    records=(141_050, 27_827),
    files=(
        dataset.DatasetFile(
            "homes",
            ("house/new.csv", "house/house.csv", "house/lianjia_sample.csv.gz"),
            "318,851 sales by Lianjia; a sample of 31,886 is read as well",
            "Kaggle, ruiqurm/lianjia: Housing price in Beijing",
            "CC BY-NC-SA 4.0",
        ),
        dataset.DatasetFile(
            "listings",
            ("house/airbnb_beijing.csv.gz", "house/airbnb_clean.csv"),
            "27,827 listings, categories as columns of zeros and ones",
            "Inside Airbnb, Beijing; the authors' file is in their repository",
            "CC0 1.0",
        ),
    ),
    scores=paper_scores.HOUSE,
    note="the public sample lacks DOM (days on the market), so it has 52 features, not 53",
)


def read_house(paths: Mapping[str, Path], rng: np.random.Generator) -> dataset.Dataset:
    """Read sales of 2013 and later from 0.1 to below 10 million CNY, as the authors selected, and all listings."""
    homes, listings = _homes(paths["homes"]), _listings(paths["listings"])
    filters = dataset.NumberFilterSettings(epsilon=0.03, delta=0.03, threshold=0.01)
    link = dataset.LinkSpec(PLACE, PLACE, "euclidean", 100, filters=filters)
    return dataset.Dataset(
        about=HOUSE_INFO,
        primary=dataset.PartyTable.excluding((LABEL, *PLACE), homes, DROPPED),
        label=LABEL,
        secondaries=(dataset.SecondaryTable("listings", dataset.PartyTable.excluding(PLACE, listings), link),),
    )


def _homes(path: Path) -> pl.DataFrame:
    coded = [name for name in CATEGORIES if not name.startswith("trade_")]
    needed = ["Lng", "Lat", LABEL, "tradeTime", "communityAverage", *PLAIN, *DIRTY_NUMBERS, *coded]
    frame = cleaning.read_lossy_csv(path, needed)
    frame = frame.select(*needed, *({"DOM"} & set(frame.columns)))
    digits = pl.col(DIRTY_NUMBERS).str.extract(r"(\d+)")
    frame = frame.with_columns(digits, pl.col("tradeTime").str.replace_all(r"\D", "")).with_columns(
        trade_year=pl.col("tradeTime").str.slice(0, 4), trade_month=pl.col("tradeTime").str.slice(4, 2)
    )
    frame = cleaning.cast_to_numbers(frame.drop("tradeTime"), frame.drop("tradeTime").columns, path)
    frame = cleaning.drop_incomplete_rows(frame, path).drop("communityAverage").rename({"Lng": "lon", "Lat": "lat"})
    kept = frame.filter(pl.col("trade_year") > 2012, pl.col(LABEL).is_between(10, 1000, closed="left"))
    kept = cleaning.require_rows(kept, path, "a sale after 2012 at 10 to 1000")
    return cleaning.one_hot(kept.with_columns(pl.col(CATEGORIES).cast(pl.Int64)), CATEGORIES)


def _listings(path: Path) -> pl.DataFrame:
    frame = cleaning.read_with_columns(path, [*PLACE, "price", "minimum_nights", "number_of_reviews"])
    return cleaning.drop_incomplete_rows(cleaning.cast_to_numbers(frame, frame.columns, path), path)
