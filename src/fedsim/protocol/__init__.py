"""What the parties say to each other, and how it travels."""
