"""Loans and firms."""

from __future__ import annotations

from pathlib import Path

from dataset_files import ROWS, company_files
from fedsim_lab.datasets.dataset_registry import load_dataset


def test_company_reads_money_and_codes(tmp_path: Path) -> None:
    company_files(tmp_path)
    loans = load_dataset("company", tmp_path)
    companies = loans.secondaries[0].table
    assert (len(loans.primary), len(companies)) == (ROWS - 1, ROWS - 1)
    assert loans.labels[:3].tolist() == [1.0, 2.0, 3.0]
    assert {"st_NY", "st_TX", "ns_45", "ns_72", "rl_Y", "ms_P I F"} <= set(loans.primary.features)
    assert companies.features == (
        "current employee estimate", "total employee estimate", "industry_mining & metals", "industry_retail",
        "size_10001+",
    )  # fmt: skip
