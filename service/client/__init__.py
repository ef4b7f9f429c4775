"""The Python client of a running service: every call described once, sent by two senders.

`import tidemark` is its public face. Invariant: nothing here imports the service itself, so that a
program that only talks to one loads neither numpy nor any engine.
"""
