"""Views as tables of another PostgreSQL: additional sinks of type `postgres`.

Terms: target (the table there), progress table (one row for each sink, in the table's schema),
changelog (a table of a view's changes, only added to). May import `sink` and below. Start with
`table_sink.py`.
"""
