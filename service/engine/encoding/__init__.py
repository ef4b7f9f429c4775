"""The format of the state directory's values: versioned, and free of module and class names.

`object_graph` writes any graph of registered objects, `registered` has the format's stable names,
`frames` writes what is stored once per transaction, `version_1` reads the old pickles. May import
everything except what stores values (engine, outbox, spool). Start with `object_graph`.
"""
