"""How fast it is, each figure beside its peer in the same run: `python -m bench`."""
