"""A sink that appends a view's changes to an Iceberg table, with the epoch in each snapshot.

May import `connectors.lake`, `connectors.objects` and the contracts beside the connectors' folders.
Start with `iceberg_sink.py`. Views on Spark have a writer of their own in `connectors.spark.batch`.
"""
