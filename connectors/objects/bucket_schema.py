"""How an S3 bucket is reached, as JSON Schemas (connectors/option_schema.py)."""

from __future__ import annotations

from connectors.option_schema import Schema, advanced, flag, secret, text

BUCKET: dict[str, Schema] = {
    "endpoint": advanced(text("Endpoint", "URL of an S3 service other than AWS.")),
    "region": advanced(text("Region", "Of the bucket.", default="us-east-1")),
    "access_key": advanced(secret("Access key", "Without keys, access is anonymous.")),
    "secret_key": advanced(secret("Secret key", "Belongs to the access key.")),
    "session_token": advanced(secret("Session token", "Of temporary keys.")),
    "virtual_host": advanced(flag("Bucket in the host name", "Not in the path of URLs.")),
    "ca_file": advanced(text("Authority", "PEM file of certificates to trust at the endpoint.")),
}
