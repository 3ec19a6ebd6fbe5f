"""Job and party files, the owner's policy, and what they mean."""
