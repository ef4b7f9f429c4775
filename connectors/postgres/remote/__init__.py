"""Tables of other PostgreSQL databases as relations of declared sources.

The database that Tidemark runs on is its main source (`connectors/postgres/source.py`); here are
all others, with the same slot, stream, decoder and snapshots. Terms: the declared relation is what
queries read; the wire relation is the same columns as the other database numbers and types them.
Start with `source.py` and `feed.py`.
"""
