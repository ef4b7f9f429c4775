"""A sink that writes a view to tables of ClickHouse, so that a repeated write changes nothing.

Terms: mode `rows` has the newest version of each row, mode `changes` all changes. May import
`connectors.lake` and the contracts beside the connectors' folders. Start with
`clickhouse_sink.py`.
"""
