from tidemark_native import aggregates as aggregates
from tidemark_native import expressions as expressions
from tidemark_native import files as files
from tidemark_native import formats as formats
from tidemark_native import mysql as mysql
from tidemark_native import replication as replication
from tidemark_native import storage as storage
from tidemark_native import values as values
from tidemark_native import windows as windows

VERSION: str
