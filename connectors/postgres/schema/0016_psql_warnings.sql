-- A request reports the warnings of the view that it created.

{{request}}
