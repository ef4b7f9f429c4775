"""Logical plans and all that is known of one: what `sql` makes, `operators` read, people see.

Here: the nodes (`nodes`), walks and rewriting (`walk`, `trees`), what a plan says of its rows
(`keys`, `nullability`, `numeric_forms`, `view_key`, ...), the same work (`likeness`), the check of
a finished plan (`check`) and its forms for people (`explain`). Pure functions of frozen trees.
May import: expressions, schema, types, errors; nothing of `sql` or `operators`, which both stand
above. Start reading at `nodes`, then `walk`.
"""
