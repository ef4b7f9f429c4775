"""What a pipeline measures of itself, and the list of all metrics.

May import `runtime`. Start with `metrics.py`; `metric_list.py` is what docs/METRICS.md documents.
"""
