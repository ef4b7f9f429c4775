"""Checkpoints of the state in a folder or bucket, and restoring from them.

Terms: checkpoint (a copy of the state), manifest (the list of its files), repository (the
checkpoints of one group), checkpoint key (authenticates manifests). May import `subscriptions` and
below. Start with `checkpoints.py`; `restore.py` reads them back.
"""
