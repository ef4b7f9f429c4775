"""What is known of a plan without running it: keys, NULLs, single rows, origins, requirements.

Imports only `dataflow.plan` and expressions. Start with `unique_keys.py`.
"""
