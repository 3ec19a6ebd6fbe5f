"""The paper's datasets, and two generated ones with known truth."""

from fedsim_lab.datasets.dataset import Dataset, DatasetInfo
from fedsim_lab.datasets.dataset_registry import find_datasets, load_dataset, load_single_table
from fedsim_lab.datasets.single_table import SingleTable

__all__ = ["Dataset", "DatasetInfo", "SingleTable", "find_datasets", "load_dataset", "load_single_table"]
