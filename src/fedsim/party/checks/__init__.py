"""What may go wrong with a job, looked at before anything is sent; one file per subject."""
