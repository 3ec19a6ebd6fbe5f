"""The three gates of Algorithm 1: weight, sort (``order``) and merge."""
