"""What a partner's data adds: the ladder of trainings and the intervals of their differences."""
