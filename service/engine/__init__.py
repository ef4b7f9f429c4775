"""Live views over one store: definitions, epoch buffer, positions, outbox and replay.

An epoch is one step of all views. May import `runtime` and `metrics`. Start with `engine.py`;
`encoding/` is the durable form of everything written to a state directory.
"""
