"""Oracle: docs/OPERATING.md: whatever a command is given, the reason stands on standard error with
its code and what to do, in a few lines, and never where in the program it was found."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.tiers import is_fast

ROOT = Path(__file__).resolve().parents[2]
AWAY = "host=127.0.0.1 port=1 dbname=shop user=me password=hunter2"
GIVEN = {"TIDEMARK_SOURCE": AWAY}
NOT_TEXT = b"\xff\xfe"

# Arguments, environment, code that is told, exit code.
REFUSALS: list[tuple[str, dict[str, str], str, int]] = [
    ("token create bob --direct", {}, "source.dsn", 2),
    ("token create bob --direct --db-role x", {}, "source.dsn", 2),
    ("token revoke bob --direct", {}, "source.dsn", 2),
    ("token create bob --direct", {"TIDEMARK_SOURCE": ""}, "source.dsn", 2),
    ("token create bob --direct", GIVEN, "sink.unreachable", 1),
    ("token create bob --direct", {"TIDEMARK_SINK": AWAY}, "sink.unreachable", 1),
    ("token create bob --direct", {"TIDEMARK_SOURCE": "garbage"}, "sink.dsn", 1),
    ("token create bob --direct", {"TIDEMARK_SOURCE": "${file:/nope}"}, "secret.missing", 1),
    ("token create bob --direct --role king", GIVEN, "request.invalid", 1),
    ("token create bob --direct --expires-days nan", GIVEN, "request.invalid", 1),
    ("token create bob --direct", {**GIVEN, "TIDEMARK_MEMORY": "abc"}, "setting.invalid", 2),
    ("serve", {}, "source.dsn", 2),
    ("serve", {"TIDEMARK_SOURCE": ""}, "source.dsn", 2),
    ("serve --source ''", {}, "source.dsn", 2),
    ("serve --memory abc", GIVEN, "setting.invalid", 2),
    ("serve", {**GIVEN, "TIDEMARK_MEMORY": "1"}, "setting.invalid", 2),
    ("serve --port 99999", GIVEN, "setting.invalid", 2),
    ("serve --log-format x", GIVEN, "setting.invalid", 2),
    ("serve --log-level silly", GIVEN, "setting.invalid", 2),
    ("serve --prefix 9X", GIVEN, "setting.invalid", 2),
    ("serve --tls-cert /nope", GIVEN, "setting.invalid", 2),
    ("serve", {**GIVEN, "TIDEMARK_WAL_LIMIT": "x"}, "setting.invalid", 2),
    ("serve --state not.json", GIVEN, "state.io", 1),
    ("serve --source garbage", {}, "source.dsn", 1),
    ("serve --source '${file:/nope}'", {}, "secret.missing", 1),
    ("doctor", {}, "source.dsn", 2),
    ("doctor", {**GIVEN, "TIDEMARK_PORT": "x"}, "setting.invalid", 2),
    ("doctor --deep --state not.json", GIVEN, "source.unreachable", 1),
    ("doctor --source garbage", {}, "source.dsn", 1),
    ("init garbage", {}, "source.dsn", 1),
    ("init '${file:/nope}'", {}, "secret.missing", 1),
    ("restore nowhere --state made", {}, "checkpoint.missing", 1),
    ("restore s3:// --state made", {}, "backfill.exchange_url", 1),
    ("restore folder --state not.json", {}, "restore.not_empty", 1),
    ("checkpoints s3://", {}, "backfill.exchange_url", 1),
    ("list --url foo", {}, "service.unreachable", 1),
    ("list --url http://[::1", {}, "service.unreachable", 1),
    ("list", {"TIDEMARK_TOKEN": "t\u00f6ken\n"}, "auth.invalid", 1),
    ("sources create a files nowhere.json", {}, "file.unreadable", 1),
    ("sources create a files folder", {}, "file.unreadable", 1),
    ("sources create a files binary.json", {}, "file.unreadable", 1),
    ("sources create a files not.json", {}, "file.not_json", 1),
    ("sources create a files list.json", {}, "file.not_json", 1),
    ("sources create a files -", {}, "file.unreadable", 1),
    ("sources discover files nowhere.json", {}, "file.unreadable", 1),
    ("sources change a not.json", {}, "file.not_json", 1),
    ("sinks create v s nowhere.json", {}, "file.unreadable", 1),
    ("sinks create v s list.json", {}, "file.not_json", 1),
    ("validate binary.json", {}, "file.unreadable", 1),
    ("validate -", {}, "file.unreadable", 1),
    ("validate folder", {}, "service.unreachable", 1),
    ("create v -", {}, "file.unreadable", 1),
    ("replace v -", {}, "file.unreadable", 1),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("cli")
    (made / "folder").mkdir()
    (made / "not.json").write_text('{"a": ')
    (made / "list.json").write_text("[1]")
    (made / "binary.json").write_bytes(NOT_TEXT)
    return made


def run(folder: Path, arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    own = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    # Nothing listens there.
    own["TIDEMARK_URL"] = "http://127.0.0.1:1"
    return subprocess.run(
        [sys.executable, "-m", "service.cli.main", *shlex.split(arguments)],
        env={**own, **environment},
        input=NOT_TEXT,
        capture_output=True,
        timeout=120,
        check=False,
        cwd=folder,
    )


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "exit_code"),
    REFUSALS,
    ids=[f"{a}, {' '.join(f'{k}={v}' for k, v in e.items())}" for a, e, *_ in REFUSALS],
)
def test_a_refusal_has_a_code_and_a_hint(
    folder: Path, arguments: str, environment: dict[str, str], code: str, exit_code: int
) -> None:
    ended = run(folder, arguments, **environment)
    told = (ended.stdout + ended.stderr).decode(errors="replace")
    assert ended.returncode == exit_code, told
    assert f"[{code}]" in told, told
    assert "hint: " in told or "run: " in told or code in ("state.io",), told
    assert "Traceback" not in told and 'File "' not in told and "pydantic" not in told, told
    assert len(ended.stderr) < 1500 and "hunter2" not in told, told


@pytest.mark.whole
def test_the_first_token_is_an_admins(database: Database, folder: Path, tmp_path: Path) -> None:
    """Whichever way it is asked for: else nobody could make another one, or take it back."""

    def told(ended: subprocess.CompletedProcess[bytes]) -> str:
        return ended.stderr.decode()

    command = "tidemark token create admin --role admin"
    source = {"TIDEMARK_SOURCE": database.dsn}
    with RunningService(database.dsn, tmp_path) as service:
        url = {"TIDEMARK_URL": service.url}
        for role in ("reader", "operator"):
            ended = run(folder, f"token create bob --role {role}", **url)
            assert (ended.returncode, ended.stdout) == (1, b"")
            assert "[token.first_not_admin]" in told(ended)
            assert f"hint: run first: {command}\n" in told(ended)
            ended = run(folder, f"token create bob --role {role} --direct", **source)
            assert (ended.returncode, ended.stdout) == (1, b"")
            assert f"hint: run first: {command} --direct; then" in told(ended)
            answer = service.call("POST", "/tokens", {"name": "bob", "role": role})
            assert (answer.status_code, answer.json()["code"]) == (409, "token.first_not_admin")
        # Nobody is locked out by it.
        assert service.call("GET", "/views").status_code == 200
        ended = run(folder, command.removeprefix("tidemark "), **url)
        assert ended.returncode == 0, told(ended)
        admin = {**url, "TIDEMARK_TOKEN": ended.stdout.decode().strip()}
        assert run(folder, "token create bob", **admin).returncode == 0
        refused = run(folder, "list", **url)
        assert "[auth.missing]" in told(refused)
        assert "--role admin --direct" in told(refused)
        # All are gone: the way out needs no token.
        for name in ("bob", "admin"):
            assert run(folder, f"token revoke {name}", **admin).returncode == 0
        assert run(folder, "list", **admin).returncode == 1
        ended = run(folder, f"{command.removeprefix('tidemark ')} --direct", **source)
        assert ended.returncode == 0, told(ended)
        again = {**url, "TIDEMARK_TOKEN": ended.stdout.decode().strip()}
        service.await_so(lambda: run(folder, "list", **again).returncode == 0)


def test_a_short_password_cuts_no_words(folder: Path) -> None:
    """What cannot be reached is told whole; a long one is hidden wherever it stands."""
    for password in ("is",) if is_fast() else ("a", "e", "is", "host", "tide"):
        dsn = f"host=127.0.0.1 port=1 dbname=shop user=me password={password}"
        ended = run(folder, "token revoke x --direct", TIDEMARK_SOURCE=dsn)
        told = ended.stderr.decode()
        assert "password=***" in told and f"password={password}" not in told
        assert told.replace("password=***", "").count("***") == 0, told
        assert "Is the server running on that host" in told, told
