"""Files in a folder or an S3 bucket that several writers share, and how a bucket is reached.

Terms: a name is a file's path below the folder or prefix; a name is created if no one else has it.
May import the contracts beside the connectors' folders. Start with `shared_storage.py`.
"""
