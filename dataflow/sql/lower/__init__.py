"""From a plan to operators, and cost estimates of a plan's dataflow.

May import `parse`, `bind` and `rules`. Start with `lowering.py`.
"""
