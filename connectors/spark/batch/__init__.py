"""A program for schedulers: views brought up to date from topics and files, written to a lake.

It puts connectors together as the service does, so it may import all of them; nothing imports it
but `connectors/spark/run.py`. The views are those of `connectors.spark.maintained`: same plans,
same operators, same protocol. Start with `program`, then `view_run` and `iceberg_sink`.
"""
