from tidemark_native import storage as storage

VERSION: str
