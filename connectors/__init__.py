"""Connectors: sources of changes and sinks of views.

`source.py` and `feed_source.py` are the contracts of sources, `sink.py` and `view_sink.py` those of
sinks. Terms: a position says how far a source has been read; a part is a disjoint share of a
snapshot; a rejected record is malformed and becomes a dead letter. No connector imports another
one.
"""

import storage  # noqa: F401  # Checks the version of the kernels before any is imported.
