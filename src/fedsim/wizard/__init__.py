"""Proposals for `fedsim init`: how two tables could be linked and what could be learnt from them."""
