"""The three roles as processes: coordinator, primary, secondary, and prediction with all of them online."""
