"""A sink that writes a view's changes as Parquet files, with manifests that show whole epochs.

Terms: a manifest is one version of the list of files; a checkpoint holds the older part of that
list. May import `connectors.lake`, `connectors.objects` and the contracts beside the connectors'
folders. Start with `parquet_sink.py`.
"""
