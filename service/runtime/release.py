"""The program's version, in its own module so that printing it imports nothing else."""

VERSION = "0.1.0"
