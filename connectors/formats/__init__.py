"""Record formats, shared by the connectors that read records: bytes to columns.

Terms: a reader splits records into declared columns; a format makes rows and removals of them; a
fault is why a record is malformed; a leaf is a typed value at a path of a schema; an envelope is a
Debezium event.
"""
