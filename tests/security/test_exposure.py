"""Oracle: docs/SECURITY.md, where it listens: nothing listens for others without a token and TLS,
and a renewed certificate is what the next client is shown."""

from __future__ import annotations

import datetime
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import tidemark
from connectors.loopback import free_port
from connectors.postgres.embedded.server import EmbeddedPostgres
from dataflow.errors import TidemarkError
from service.api import tls
from service.api.app import create_app
from service.api.exposure import check_exposure
from service.runtime.settings import Settings
from tests.harness.postgres import Database, new_database


@pytest.fixture(scope="module")
def place(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        yield made


def write_certificate(folder: Path, name: str) -> None:
    """A certificate of its own authority for 127.0.0.1, called `name`, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    format = serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(pem, format, plain))
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))


def _settings(place: Database, folder: Path, **more: Any) -> Settings:
    return Settings.model_validate({"source": place.dsn, "state": folder / "state", **more})


def _codes(settings: Settings) -> list[str]:
    return [problem.code for problem in check_exposure(settings)]


def test_nothing_listens_for_others_unprotected(
    place: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}
    assert _codes(_settings(place, tmp_path)) == []
    for host in ("0.0.0.0", "::", "192.0.2.1", "service.example"):
        found = _codes(_settings(place, tmp_path, host=host))
        assert found == ["service.no_token", "service.no_tls"], host
    assert _codes(_settings(place, tmp_path, **files)) == ["service.tls"]
    write_certificate(tmp_path, "first")
    found = _codes(_settings(place, tmp_path, host="0.0.0.0", **files))
    assert found == ["service.no_token"]
    # The first token is made in the sink itself, by the command, and printed once.
    monkeypatch.setenv("TIDEMARK_SOURCE", place.dsn)
    words = ["token", "create", "first", "--role", "admin", "--direct"]
    command = [sys.executable, "-m", "service.cli.main", *words]
    made, again = (subprocess.run(command, capture_output=True, text=True) for _ in range(2))
    assert made.returncode == 0 and made.stdout.startswith("tdm_"), made.stderr
    assert made.stdout.strip() not in made.stderr and "\n" not in made.stdout.strip()
    assert again.returncode == 1 and "token.name_taken" in again.stderr
    assert _codes(_settings(place, tmp_path, host="0.0.0.0", **files)) == []
    assert _codes(_settings(place, tmp_path, host="0.0.0.0")) == ["service.no_tls"]
    assert _codes(_settings(place, tmp_path, host="0.0.0.0", insecure=True)) == []
    with pytest.raises(ValueError, match="set tls_cert and tls_key together"):
        _settings(place, tmp_path, tls_cert="x")


def test_tls_with_the_client_and_a_renewed_certificate(
    place: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "POLL_S", 0.05)
    write_certificate(tmp_path, "before")
    files = {"tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}
    settings = _settings(place, tmp_path, port=free_port(), **files)
    application = create_app(settings)
    token, _ = application.state.tokens.create("tls", "admin")
    config = uvicorn.Config(
        application, port=settings.port, log_config=None, **tls.arguments(settings)
    )
    tls.watch(config, settings)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.05)
        assert _shown(settings.port) == "before"
        monkeypatch.setenv("SSL_CERT_FILE", files["tls_cert"])
        with tidemark.connect(f"https://localhost:{settings.port}", token) as client:
            assert client.views() == []
        with (
            tidemark.connect(f"https://localhost:{settings.port}", "") as client,
            pytest.raises(TidemarkError) as refused,
        ):
            client.views()
        assert refused.value.code == "auth.missing"
        (tmp_path / "cert.pem").write_text("half a file")
        time.sleep(0.2)
        assert _shown(settings.port) == "before"
        write_certificate(tmp_path, "after")
        while _shown(settings.port) != "after":
            assert time.monotonic() < deadline + 30
            time.sleep(0.05)
    finally:
        server.should_exit = True
        thread.join(30)


def _shown(port: int) -> str:
    """What the certificate is called that a client is shown."""
    pem = ssl.get_server_certificate(("127.0.0.1", port))
    subject = x509.load_pem_x509_certificate(pem.encode()).subject
    return str(subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)
