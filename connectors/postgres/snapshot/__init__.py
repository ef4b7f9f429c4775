"""Consistent snapshots of a source, read in parts.

May import `analysis` and below. Start with `snapshot.py`.
"""
