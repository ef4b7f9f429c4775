"""The whole product inside a script or a notebook: `tidemark.Engine`.

May import everything except `cli` and `demo`. Start with `engine.py` (in the user's
process); `host.py` is the process that runs the service.

Terms: a *function* is a Python source of rows with a table. A *narrow* function receives the
columns and conditions that its readers need (a `Requirement`); its table contains only those rows.
"""
