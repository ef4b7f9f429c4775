"""Logical plans and their static properties: `sql` builds them, `operators` run them.

Here: the nodes (`nodes`), walks and rewriting (`walk`, `trees`), derived facts about rows
(`properties`), equality of work (`fingerprint`), the check of a finished plan (`check`) and its
printed forms (`explain`). Pure functions of frozen trees. May import expressions, schema, types and
errors; never `sql` or `operators`, which are layers above. Start reading at `nodes`, then `walk`.
"""
