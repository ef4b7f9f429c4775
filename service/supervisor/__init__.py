"""The processes of the service: start, watch and restart them.

May import everything except `embedded`, `demo` and `cli`. Start with `supervisor.py`, which forks
`run_pipeline.py` and `run_api.py`.

Terms: a *child* is a supervised process. The *readiness pipe* is how a child reports that it works.
"""
