"""State: weighted rows in columns, arrangements that index them by key, and their store.

Imports no other package of ours. Callers only use `delta.Delta`, `store.Store` and
`store.Arrangement`; only this package knows whether RocksDB or dictionaries hold the rows. Terms: a
run is a sorted, immutable sequence of pages; a page image holds rows in memory and on disk alike; a
hit is the address of a row in a page. Start reading at `store.py`.
"""
