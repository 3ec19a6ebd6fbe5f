"""Tables of one party: read from files, checked cell by cell, or generated."""
