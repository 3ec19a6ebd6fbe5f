"""Proposals of `fedsim init`: how two tables can be linked and what can be learnt, and the files that say so."""
