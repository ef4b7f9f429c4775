"""What sinks in lakes share: a view's rows as Arrow columns, and where tables of files lie.

Terms: a changelog has a row for each change of a view, with its weight and epoch. May import
`connectors.objects` and the contracts beside the connectors' folders. Start with `lake_rows.py`.
"""
