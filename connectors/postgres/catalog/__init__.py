"""The catalog of a service, in schema "tidemark" of its sink database.

Terms: view row, source row, additional sink, token, request (from psql), dead letter, error row.
May import `sink` and below. Start with `catalog.py`.
"""
