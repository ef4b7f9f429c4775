"""The processes of the service: started, watched, started again.

May import all but `embedded`, `demo` and `cli`. Start with `supervisor.py`; `run_pipeline.py` and
`run_api.py` are what it forks.
"""
