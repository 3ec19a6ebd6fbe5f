"""Read tables from files and databases, profile columns, make features and splits, generate example data."""

__all__ = ["column_names", "features", "profile", "splits", "sql", "synthetic", "table_reader"]
