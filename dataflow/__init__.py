"""The dataflow: SQL to plan, plan to operators, operators over deltas.

Pure and repeatable: no clock, no randomness, no threads, no sockets, no logging in here.
"""
