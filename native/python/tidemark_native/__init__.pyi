from tidemark_native import storage as storage
from tidemark_native import values as values

VERSION: str
