"""Running a party: its files, its policy, its owner's approval, its log, its process."""
