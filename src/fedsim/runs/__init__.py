"""What a party keeps of a job: run folder, approval, audit log, progress, record."""
