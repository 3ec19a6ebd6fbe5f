"""Loans to small firms and a register of companies with similar names (paper: company).

The paper's text describes another dataset, and the authors' script is not public. The label and the register's 156
columns can be inferred from what is public, but not which columns of the loans they used; ours make 90, as theirs do.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from fedsim_lab.datasets import cleaning, dataset, paper_scores

LABEL = "SBA_Appv"
LOANS, COMPANIES = 77_225, 220_583
MONEY = (LABEL, "DisbursementGross", "BalanceGross", "ChgOffPrinGr", "GrAppv")
COUNTS = ("Term", "NoEmp", "CreateJob", "RetainedJob", "FranchiseCode", "ApprovalFY")
CODES = {
    "State": "st",
    "sector": "ns",
    "NewExist": "ne",
    "UrbanRural": "ur",
    "RevLineCr": "rl",
    "LowDoc": "ld",
    "MIS_Status": "ms",
}
ALLOWED = {"NewExist": ["1", "2", "1.0", "2.0"], "RevLineCr": ["Y", "N"], "LowDoc": ["Y", "N"]}
EMPLOYEES = ("current employee estimate", "total employee estimate")
LOAN_DROPPED = {
    "LoanNr_ChkDgt": "different in every row",
    "City, Zip, Bank, BankState": "thousands of names",
    "ApprovalDate, DisbursementDate": "the year of approval is kept",
    "ChgOffDate": "most are empty",
    "NAICS": "its first two digits are kept",
}
COMPANY_DROPPED = {
    "domain, linkedin url": "different in every row",
    "locality": "thousands of names",
    "country": "United States, all of them",
    "year founded": "dropped by the authors",
}

COMPANY_INFO = dataset.DatasetInfo(
    name="company",
    title="loans, a register of companies",
    task=dataset.DatasetTask.REGRESSION,
    measure="rmse",
    unit="1000 US$",
    records=(LOANS, COMPANIES),
    files=(
        dataset.DatasetFile(
            "loans",
            ("company/SBAnational.csv", "company/SBAnational.csv.gz"),
            "899,164 loans guaranteed by the Small Business Administration",
            "Kaggle, mirbektoktogaraev/should-this-loan-be-approved-or-denied",
            "CC BY-SA 4.0",
        ),
        dataset.DatasetFile(
            "companies",
            ("company/companies_sorted.csv", "company/companies_sorted.csv.gz"),
            "7 million companies with industry and size",
            "Kaggle, peopledatalabssf/free-7-million-company-dataset",
            "CC BY 4.0",
        ),
    ),
    scores=paper_scores.COMPANY,
    note="which records and loan columns the authors used is not public; GrAppv nearly determines the label",
)


def read_company(paths: Mapping[str, Path], rng: np.random.Generator) -> dataset.Dataset:
    """Draw as many complete loans and companies of the United States as the paper had."""
    loans = cleaning.one_hot(cleaning.sample_rows(_loans(paths["loans"]), LOANS, rng), CODES)
    companies = cleaning.sample_rows(_companies(paths["companies"]), COMPANIES, rng)
    companies = cleaning.one_hot(companies, {"industry": "industry", "size range": "size"})
    # The paper's figures use filters with unknown settings; these are the settings of game.
    link = dataset.LinkSpec(
        ("Name",), ("name",), "levenshtein-normalised", 50, casefold=True, filters=dataset.TITLE_FILTERS
    )
    table = dataset.PartyTable.excluding(("name",), companies, COMPANY_DROPPED)
    return dataset.Dataset(
        about=COMPANY_INFO,
        primary=dataset.PartyTable.excluding(("Name", LABEL), loans, LOAN_DROPPED),
        label=LABEL,
        secondaries=(dataset.SecondaryTable("companies", table, link),),
    )


def _loans(path: Path) -> pl.DataFrame:
    columns = ["Name", "NAICS", *MONEY, *COUNTS, *(name for name in CODES if name != "sector")]
    frame = (
        cleaning.read_columns(path, columns)
        .with_columns(
            pl.col(MONEY).str.replace_all(r"[$,\s]", ""),
            # Some loans of 1976 are written 1976A.
            pl.col("ApprovalFY").str.extract(r"(\d+)"),
            sector=pl.col("NAICS").str.slice(0, 2),
        )
        .drop("NAICS")
    )
    frame = cleaning.drop_incomplete_rows(cleaning.cast_to_numbers(frame, [*MONEY, *COUNTS], path), path)
    for column, words in ALLOWED.items():
        frame = cleaning.require_rows(frame.filter(pl.col(column).is_in(words)), path, f"a known word in '{column}'")
    return frame.with_columns(pl.col(MONEY) / 1000.0)


def _companies(path: Path) -> pl.DataFrame:
    columns = ["name", "industry", "size range", "country", *EMPLOYEES]
    frame = cleaning.read_columns(path, columns, EMPLOYEES)
    frame = frame.filter(pl.col("country") == "united states").drop("country")
    return cleaning.drop_incomplete_rows(cleaning.require_rows(frame, path, "the country united states"), path)
