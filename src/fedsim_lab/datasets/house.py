"""Home sales in Beijing and nearby Airbnb listings (paper: house)."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from fedsim_lab.datasets.cleaning import (
    cast_to_numbers,
    drop_incomplete_rows,
    one_hot,
    read_lossy_csv,
    read_with_columns,
    require_rows,
)
from fedsim_lab.datasets.dataset import (
    Dataset,
    DatasetFile,
    DatasetInfo,
    DatasetTask,
    LinkSpec,
    NumberFilterSettings,
    PartyTable,
    SecondaryTable,
)
from fedsim_lab.datasets.paper_scores import HOUSE

LABEL = "totalPrice"
PLACE = ("lat", "lon")
PLAIN = ("Cid", "followers", "square", "kitchen", "ladderRatio", "elevator", "fiveYearsProperty", "subway")
# Words beside the digits, or a spreadsheet's complaint in their place.
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

HOUSE_INFO = DatasetInfo(
    name="house",
    title="homes in Beijing, Airbnb listings",
    task=DatasetTask.REGRESSION,
    measure="rmse",
    unit="10,000 CNY",
    records=(141_050, 27_827),
    files=(
        DatasetFile(
            "homes",
            ("house/new.csv", "house/house.csv", "house/lianjia_sample.csv.gz"),
            "318,851 sales by Lianjia; a sample of 31,886 is read as well",
            "Kaggle, ruiqurm/lianjia: Housing price in Beijing",
            "CC BY-NC-SA 4.0",
        ),
        DatasetFile(
            "listings",
            ("house/airbnb_beijing.csv.gz", "house/airbnb_clean.csv"),
            "27,827 listings, categories as columns of zeros and ones",
            "Inside Airbnb, Beijing; the authors' file is in their repository",
            "CC0 1.0",
        ),
    ),
    scores=HOUSE,
    note="the public sample lacks DOM (days on the market), so it has 52 features, not 53",
)


def read_house(paths: Mapping[str, Path], rng: np.random.Generator) -> Dataset:
    """Sales of 2013 and later from 0.1 to below 10 million CNY, as the authors kept them, and all listings."""
    homes, listings = _homes(paths["homes"]), _listings(paths["listings"])
    link = LinkSpec(
        PLACE, PLACE, "euclidean", 100, filters=NumberFilterSettings(epsilon=0.03, delta=0.03, threshold=0.01)
    )
    return Dataset(
        about=HOUSE_INFO,
        primary=PartyTable(homes, _features(homes, (LABEL, *PLACE)), DROPPED),
        label=LABEL,
        secondaries=(SecondaryTable("listings", PartyTable(listings, _features(listings, PLACE)), link),),
    )


def _homes(path: Path) -> pl.DataFrame:
    coded = [name for name in CATEGORIES if not name.startswith("trade_")]
    needed = ["Lng", "Lat", LABEL, "tradeTime", "communityAverage", *PLAIN, *DIRTY_NUMBERS, *coded]
    frame = read_lossy_csv(path, needed)
    frame = frame.select(*needed, *({"DOM"} & set(frame.columns)))
    digits = pl.col(DIRTY_NUMBERS).str.extract(r"(\d+)")
    frame = frame.with_columns(digits, pl.col("tradeTime").str.replace_all(r"\D", "")).with_columns(
        trade_year=pl.col("tradeTime").str.slice(0, 4), trade_month=pl.col("tradeTime").str.slice(4, 2)
    )
    frame = cast_to_numbers(frame.drop("tradeTime"), frame.drop("tradeTime").columns, path)
    frame = drop_incomplete_rows(frame, path).drop("communityAverage").rename({"Lng": "lon", "Lat": "lat"})
    kept = frame.filter(pl.col("trade_year") > 2012, pl.col(LABEL).is_between(10, 1000, closed="left"))
    kept = require_rows(kept, path, "a sale after 2012 at 10 to 1000").with_columns(pl.col(CATEGORIES).cast(pl.Int64))
    for column, prefix in CATEGORIES.items():
        kept = one_hot(kept, column, prefix)
    return kept


def _listings(path: Path) -> pl.DataFrame:
    frame = read_with_columns(path, [*PLACE, "price", "minimum_nights", "number_of_reviews"])
    return drop_incomplete_rows(cast_to_numbers(frame, frame.columns, path), path)


def _features(frame: pl.DataFrame, others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in frame.columns if name not in others)
