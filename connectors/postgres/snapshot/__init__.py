"""Consistent snapshots of a source, read in parts.

Terms: snapshot (all tables at one position), part (a page range or the rows of some keys), overlay
(changes after the snapshot, laid over its tables), point-in-time read. May import `analysis` and
below. Start with `snapshot.py`.
"""
