"""The service: pipeline, API, supervisor, command line, demo. Imports everything else."""
