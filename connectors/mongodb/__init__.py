"""Collections of MongoDB as a source, polled and compared by key.

`options.py` reads what users declare, `documents.py` turns documents into JSON records. May import
`polled` and `formats`; start with `source.py`.
"""
