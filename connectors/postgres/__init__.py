"""PostgreSQL: analyzer, evaluator, replication source, snapshot, sink, control tables."""
