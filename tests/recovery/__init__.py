"""Kills, restarts, lost and older state: every epoch names its prefix."""
