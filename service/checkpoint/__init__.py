"""Checkpoints of the state in a folder or bucket, and restoring from them.

May import `subscriptions` and below. Start with `checkpoints.py`; `restore.py` reads them back.
"""
