"""Pure mathematics of what a recipient of noisy similarities can learn."""
