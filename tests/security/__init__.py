"""Attacks: what must not be possible, tried."""
