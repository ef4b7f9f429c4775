"""Relations that are read whole again and again, and compared with what they were.

`source.py` is a FeedSource over a `Fetch`, which a connector supplies; `contents.py` has the rows
of the last poll, and finds what the next one changes. May import `formats` and the contracts; start
with `source.py`.
"""
