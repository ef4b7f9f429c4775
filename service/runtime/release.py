"""Which version of the program this is; apart, so that whoever only says so loads no client."""

VERSION = "0.1.0"
