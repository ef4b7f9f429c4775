"""How a Kafka cluster is reached, as JSON Schemas (connectors/option_schema.py)."""

from __future__ import annotations

from connectors.option_schema import (
    Schema,
    advanced,
    choice,
    group,
    pairs,
    secret,
    text,
    tls,
)

CONNECTION: dict[str, Schema] = {
    "bootstrap_servers": text(
        "Servers",
        "Brokers as host:port, separated by commas.",
        examples=["kafka1:9092,kafka2:9092"],
    ),
    "tls": advanced(tls(has_password=True)),
    "sasl": advanced(
        group(
            "SASL",
            "Log in with a name and a password.",
            {
                "mechanism": choice(
                    "Mechanism",
                    dict.fromkeys(("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"), ""),
                    "SCRAM-SHA-512",
                    "How the password is sent.",
                ),
                "username": text("User", "The user's name."),
                "password": secret("Password"),
            },
            ("username", "password"),
        )
    ),
    "client": advanced(pairs("Client options", "Of librdkafka, for networks, sizes and times.")),
}


def registry(title: str, description: str) -> Schema:
    """Return how a schema registry is reached."""
    options = {
        "url": text("URL", "Of the registry.", examples=["https://registry:8081"]),
        "user": advanced(text("User", "For a basic login.")),
        "password": advanced(secret("Password")),
        "token": advanced(secret("Token", "A bearer token, in place of user and password.")),
        "ca": advanced(text("Authority", "PEM file of certificates to trust.")),
        "certificate": advanced(text("Certificate", "PEM file of the client's certificate.")),
        "key": advanced(text("Private key", "PEM file of the certificate's key.")),
        "timeout_s": advanced(
            {"type": "number", "title": "Timeout", "description": "Of a request.", "default": 10}
            | {"x-unit": "s"}
        ),
    }
    return group(title, description, options, ("url",), short="url")
