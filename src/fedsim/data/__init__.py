"""Read tables from files and databases, profile columns, build features and splits, and generate example data."""

__all__ = ["column_names", "features", "profile", "splits", "sql", "synthetic", "table_reader"]
