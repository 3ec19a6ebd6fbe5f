"""The command `fedsim lab`."""
