"""The pipeline's own measurements, and the list of all metrics.

May import `runtime`. Start with `metrics.py`; docs/METRICS.md documents `metric_list.py`.
"""
