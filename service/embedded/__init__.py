"""The whole product inside a script or a notebook: `tidemark.Engine`."""
