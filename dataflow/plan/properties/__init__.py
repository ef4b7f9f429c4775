"""Static properties of a plan: keys, NULLs, single rows, origins, requirements.

All are conservative: an unknown property costs speed, never correctness. May import only
`dataflow.plan` and expressions. Start reading at `unique_keys`.
"""
