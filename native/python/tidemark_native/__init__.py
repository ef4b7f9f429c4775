"""The compiled loops of Tidemark: one module for each package that calls them."""

from tidemark_native._native import VERSION, storage, values, windows

__all__ = ["VERSION", "storage", "values", "windows"]
