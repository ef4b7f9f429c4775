"""Connectors whose client library runs in a child process of its own, one for each use.

A library that ends its process, fills its memory or never returns costs one source or sink then.
Terms: the service's process starts a fork server (`fork_server.py`, by `starter.py`) that has
imported the library and forks a child for each use; a child (`child_program.py`) holds one object;
the service calls its methods (`child_process.py`), and only values cross (`frames.py`). Invariant:
no child outlives the process that has started it. May import what `connectors.outside` may, and
`storage.parent_process` and `storage.failpoints`. Start with `child_process.py`.
"""
