"""Results for people: one self-contained page per question, and the words both page and terminal use."""
