"""A sink that writes a view to a Delta Lake table, each write with its epoch as a transaction.

Terms: mode `changes` appends the changes, mode `rows` merges them into the view's current rows. May
import `connectors.lake`, `connectors.objects` and the contracts beside the connectors' folders.
Start with `delta_sink.py`.
"""
