"""Attacks on your own linkage and model; each uses only what one adversary sees."""
