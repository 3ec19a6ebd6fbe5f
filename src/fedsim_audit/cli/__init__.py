"""Commands of the audit."""
