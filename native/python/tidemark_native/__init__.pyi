from tidemark_native import aggregates as aggregates
from tidemark_native import expressions as expressions
from tidemark_native import storage as storage
from tidemark_native import values as values
from tidemark_native import windows as windows

VERSION: str
