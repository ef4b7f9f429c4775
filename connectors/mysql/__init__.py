"""MySQL and MariaDB: tables as relations, followed by the row events of the binary log.

Terms: the position of a relation is a place in the log, as file and offset and as a GTID set. A
shape is what a TABLE_MAP event says of a table: names, types and character sets of its columns at
that place of the log. An image is one row as the log holds it. A part of a snapshot is read later
than its position and brought back to it by the log (decision 38). PyMySQL and pymysqlreplication
are imported when a server is first reached. Start with `source.py`, `log.py` and `feed.py`.
"""
