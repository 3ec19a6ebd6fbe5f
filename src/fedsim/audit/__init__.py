"""The audit: attack one's own linkage and training before anything is shared, and compare with what the job claims."""
