"""Before and after the service: `tidemark doctor`, `tidemark init` and `tidemark uninstall`.

May import `api` and below. Start with `doctor.py`.

Terms: a *check* is one requirement of a database with its fix. A *step* is a check after init's
work on it. A *finding* is one result of the doctor. A *removal* is one thing that uninstall
removes, keeps, or leaves to a person (connectors/removal.py).
"""
