"""The pipeline: source to state to sink, epoch after epoch, for all views of a group.

May import every package of the service below the faces. Start with `pipeline.py` (the loop),
`composition.py` (which part uses which), `epochs.py` (an epoch's way) and `reconciler.py` (desired
to actual).
"""
