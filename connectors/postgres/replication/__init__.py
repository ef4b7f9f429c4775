"""Logical replication: publication, slot, stream, transactions, decoding.

Terms: payload (one message of the stream), shape (the columns with which a table's rows are sent),
part (a partition or child table), confirmed position (up to which the server may discard WAL). May
import `evaluation` and below. Start with `stream.py` and `decode.py`.
"""
