-- A request tells the warnings of what it has made.

{{request}}
