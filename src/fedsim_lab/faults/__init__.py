"""Fault campaigns: kills, pauses, broken networks, wrong clocks and full disks for jobs of real processes."""
