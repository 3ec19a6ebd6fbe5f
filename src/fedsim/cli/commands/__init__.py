"""Command definitions; they import the work behind a command only when it runs."""
