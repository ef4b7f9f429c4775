"""Spark: the session and the distributed backfill, with the same operators as the stream.

Terms: a stage is a set of operators that one task runs; a slot is one task of a stage, with one
range of key hashes (bucket); a page is an encoded delta; the exchange is the storage that tasks and
driver share.
"""
