"""Experiments are data: a TOML file says which tables, links and rungs; one runner does the rest."""
