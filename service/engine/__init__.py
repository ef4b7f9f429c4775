"""Live views over one store: definitions, epochs in memory, positions, outbox and replay.

May import `runtime` and `metrics`. Start with `engine.py` (one step of all views is one epoch);
`encoding/` is the durable form of everything that is written to a state directory.
"""
