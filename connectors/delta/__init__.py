"""Delta Lake tables: as sinks of views, each write with its epoch as a transaction, and as inputs.

Terms: mode `changes` appends the changes, mode `rows` merges them into the view's current rows; a
part is some row groups of a data file. May import `connectors.lake`, `connectors.objects`,
`connectors.formats` and the contracts beside the connectors' folders. Start with `delta_sink.py`
for sinks, with `ranges.py` and `table_log.py` for inputs.
"""
