"""Kafka: client, topics as sources, topics as sinks, and the embedded broker of demo and tests.

Terms: the position of a relation is {"topic": topic id, "next": next offset by
partition}. A term is the epoch of a partition's leader, a number that only rises. A dead letter is
a malformed record. Markers are the records of a sink's second topic that delimit epochs.
"""
