"""The audit: attacks on one's own linkage and training before anything is shared, held against what the job claims."""
