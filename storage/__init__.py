"""State: weighted rows in columns, arrangements that keep them by key, and the store they lie in.

Imports nothing else of ours. Everything above sees `delta.Delta`, `store.Store` and
`store.Arrangement`; whether a run of pages in RocksDB or a dictionary answers is decided here.
"""
