"""PostgreSQL's analyzer and catalog applied to queries and tables.

Terms: canonical text (PostgreSQL's own form of a query), stub relation (an empty temporary table
for a relation that the database lacks), right, readiness check. May import `replication` and below.
Start with `analyzer.py`.
"""
