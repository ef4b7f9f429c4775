"""What a service has made in PostgreSQL, found and removed again.

`sink_removal.py` has its views and its catalog, `source_removal.py` its slots, publications and
functions, `role_removal.py` the privileges of its roles. Each finds first and changes nothing then;
see `connectors/removal.py`. It may import all other packages of connectors/postgres but remote.
"""
