"""Oracle: what was put into the environment and into files."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.secrets import is_reference, refuse_plain, resolve, without
from dataflow.errors import SourceError


def test_references_are_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_TEST_SECRET", "s3cret ${env:NOT_AGAIN}")
    (tmp_path / "key").write_text("one line\n")
    assert resolve("${env:TIDEMARK_TEST_SECRET}") == "s3cret ${env:NOT_AGAIN}"
    assert resolve(f"<${{file:{tmp_path}/key}}>") == "<one line>"
    assert resolve("plain $text {x}") == "plain $text {x}"


def test_what_is_missing_is_named_and_secrets_are_not(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for text in ("${env:TIDEMARK_TEST_ABSENT}", "${file:/no/such}", f"${{file:{tmp_path}/binary}}"):
        with pytest.raises(SourceError) as refused:
            resolve(text)
        assert refused.value.code == "secret.missing"
        assert text in refused.value.what
    with pytest.raises(SourceError) as refused:
        refuse_plain("password", "hunter2")
    assert refused.value.code == "secret.plain"
    assert "hunter2" not in str(refused.value) + refused.value.described
    assert refuse_plain("password", "${env:X}") == "${env:X}"


def test_only_a_whole_reference_is_one() -> None:
    assert is_reference("${env:A}")
    assert is_reference("${file:/run/secrets/a}")
    assert not is_reference("x${env:A}")
    assert not is_reference("${env:}")


@pytest.mark.parametrize("secret", ["a", "in", "host", "p+w", "short"])
def test_a_short_secret_is_hidden_as_a_whole_value(secret: str) -> None:
    words = f"a host in the hostile inn has {secret}s, x{secret}, {secret}_y; shortly p+wn"
    assert without(words, secret) == words
    for shown in (
        'password="{}"',
        "password='{}' host=db",
        "password={}",
        "pw: x, me:{}@db",
        "={},",
    ):
        assert secret not in without(shown.format(secret), secret).split("host=db")[0].replace(
            "password", ""
        )


def test_a_long_secret_is_hidden_wherever_it_stands() -> None:
    assert without("xhunter2y hunter2, hunter2hunter2", "hunter2") == "x***y ***, ******"
    assert without("nothing", "") == "nothing"
