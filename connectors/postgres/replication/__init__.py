"""Logical replication: publication, slot, stream, transactions, decoding.

May import `evaluation` and below. Start with `stream.py` and `decode.py`.
"""
