"""Kafka: the client, topics as sources, and the embedded broker of the demo and the tests."""
