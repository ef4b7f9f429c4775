"""From a plan to operators, and what the dataflow of a plan will cost.

May import `parse`, `bind` and `rules`. Start with `lowering.py`.
"""
