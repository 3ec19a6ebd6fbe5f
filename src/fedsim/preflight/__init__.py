"""Everything that can be known to fail, and the cost of a job, before anything is sent."""
