"""Views maintained in buckets, epoch by epoch, by the tasks of any scheduler (decision 34).

The operators, plans and pages are those of one process; only the rows are cut by key. A package of
its own because it needs no Spark: `spark_scheduler` and `daemon` alone import it, and the rest is
simulated without. May import the rest of `connectors.spark`, and `dataflow` and `storage` below.
Start with `driver`, then `tasks` and `bucket_state`; `files` and `connectors.objects` last.
`skew` decides which keys of joins are spread.
"""
