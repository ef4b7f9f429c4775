"""How the state directory's values are written: a versioned format that names no module or class.

`object_graph` writes any graph of registered objects, `registered` has the stable names of the
format, `frames` writes what comes once a transaction, and `version_1` reads what was written
before. May import all but what keeps values (engine, outbox, spool). Start at `object_graph`.
"""
