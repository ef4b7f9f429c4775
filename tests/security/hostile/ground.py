"""The ground of the attacks: a database with a running service, and mallory, a plain role in it.

What mallory has a service run ends in m.note, which writes to the server's log who runs it and
what it may do: the log keeps what a rolled-back or read-only transaction does not. Before that it
tries to become the login. So an attack has succeeded exactly when a session of the service has
noted rights that are not mallory's.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg2
from psycopg2.extensions import connection as Connection

from service.setup.bootstrap import Desired, prepare
from tests.harness.postgres import Database
from tests.harness.psql import psql, session_of
from tests.harness.service import RunningService

TREASURE = "the treasure of the vault"
_NOTE = re.compile(r"hostile\|(.*?)\|(.*?)\|(.*?)\|(.*?)\|(.*?)\|end")

# What belongs to others than mallory. {service}: the service's login.
VAULT = f"""
CREATE SCHEMA vault;
CREATE TABLE vault.secret (id int PRIMARY KEY, s text);
INSERT INTO vault.secret VALUES (1, '{TREASURE}');
CREATE TABLE vault.ledger (line text);
CREATE TABLE public.shared (id int PRIMARY KEY, a int, b text);
INSERT INTO public.shared SELECT i, i % 3, 'b' || i FROM generate_series(1, 20) AS i;
"""
# Functions of mallory's. m.note is what is run in the end; m.steal hides it from PostgreSQL, which
# lets nothing but an immutable function stand in an index or be computed while planning.
ARMS = """
CREATE TABLE m.t (id int PRIMARY KEY, a int, b text);
INSERT INTO m.t SELECT i, i % 3, 'b' || i FROM generate_series(1, 20) AS i;
CREATE FUNCTION m.note(place text) RETURNS void LANGUAGE plpgsql AS $f$
DECLARE way text; reads boolean := false; reaches text := '';
BEGIN
    FOREACH way IN ARRAY ARRAY['', 'RESET ROLE', 'SET ROLE NONE',
        'SELECT pg_catalog.set_config(''role'', ''none'', false)',
        'SET SESSION AUTHORIZATION DEFAULT', 'RESET SESSION AUTHORIZATION'] LOOP
        BEGIN
            IF way <> '' THEN EXECUTE way; END IF;
        EXCEPTION WHEN OTHERS THEN CONTINUE;
        END;
        BEGIN
            PERFORM FROM vault.secret; reads := true;
        EXCEPTION WHEN OTHERS THEN reads := false;
        END;
        BEGIN
            PERFORM FROM tidemark.tokens; reaches := 'tokens';
        EXCEPTION WHEN OTHERS THEN reaches := '';
        END;
        BEGIN
            INSERT INTO vault.ledger VALUES (place); reaches := reaches || ' ledger';
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
        RAISE LOG 'hostile|%|%|%|% %|%|end', place, current_user,
            pg_catalog.current_setting('application_name'), reads, reaches, way;
    END LOOP;
END $f$;
CREATE FUNCTION m.steal(x int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
    $f$BEGIN PERFORM m.note('steal'); RETURN x; END$f$;
CREATE FUNCTION m.steal(x text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
    $f$BEGIN PERFORM m.note('steal'); RETURN x; END$f$;
CREATE FUNCTION m.is_fine(x int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
    $f$BEGIN PERFORM m.note('is_fine'); RETURN true; END$f$;
CREATE FUNCTION m.fires() RETURNS trigger LANGUAGE plpgsql AS
    $f$BEGIN PERFORM m.note('trigger'); RETURN coalesce(NEW, OLD); END$f$;
GRANT USAGE ON SCHEMA m TO PUBLIC; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA m TO PUBLIC;
"""


@dataclass(frozen=True)
class Note:
    """What code of mallory's has noted: where it stood, as whom and in which session it ran."""

    place: str
    user: str
    application: str
    reach: str
    way: str


@dataclass
class Ground:
    """One set-up. is_super: the service logs in as a superuser. tokens: by name, of the API."""

    database: Database
    is_super: bool
    login: str
    mallory: str
    others: dict[str, str] = field(default_factory=dict)
    service: RunningService | None = None
    tokens: dict[str, str] = field(default_factory=dict)
    seen: int = 0

    @property
    def dsn(self) -> str:
        """The service's."""
        server = self.database.server
        if self.is_super:
            return self.database.dsn
        return f"host=127.0.0.1 port={server.port} user={self.login} dbname={self.database.name}"

    # --- mallory -----------------------------------------------------------------------------

    def attack(self, sql: str) -> list[tuple[Any, ...]]:
        """Statements of mallory's, in her own session; rows of the last one."""
        session = self.session()
        try:
            cursor = session.cursor()
            cursor.execute(sql)
            return cursor.fetchall() if cursor.description else []
        finally:
            session.close()

    def tries(self, sql: str) -> str:
        """As `attack`; the SQLSTATE of a refusal, "" without one."""
        try:
            self.attack(sql)
        except psycopg2.Error as error:
            return error.pgcode or "lost"
        return ""

    def session(self, user: str = "") -> Connection:
        """A session of mallory's, or of another role."""
        session = session_of(self.database, user or self.mallory)
        session.cursor().execute("SET statement_timeout = '40s'")
        return session

    def call(self, operation: str, *arguments: str, user: str = "") -> str:
        """`CALL tidemark....` by mallory; "" or the code of the refusal."""
        session = self.session(user)
        try:
            marks = ", ".join(["%s"] * len(arguments))
            session.cursor().execute(f"CALL tidemark.{operation}({marks})", arguments)
            return ""
        except psycopg2.Error as error:
            found = re.search(r"code: ([\w.]+)", str(error.diag.message_detail or ""))
            return found[1] if found else f"{error.pgcode}: {error}"
        finally:
            session.close()

    # --- the API -----------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: Any = None, who: str = "admin") -> httpx.Response:
        """One request with a token: admin, operator, reader, mallory (an operator with her
        database role) or spy (a reader with it)."""
        assert self.service is not None
        headers = {"Authorization": f"Bearer {self.tokens[who]}"} if self.tokens else {}
        return self.service.client.request(method, path, json=body, headers=headers, timeout=60)

    def status(self, name: str) -> str:
        """How a view stands."""
        return self.ask("GET", f"/views/{name}").json().get("status", "gone")

    def await_status(self, name: str, *wanted: str, within_s: float = 60) -> str:
        """Wait until a view has one of these."""
        deadline = time.monotonic() + within_s
        while True:
            found = self.status(name)
            if found in wanted:
                return found
            assert time.monotonic() < deadline, (name, self.ask("GET", f"/views/{name}").text)
            time.sleep(0.05)

    def settle(self, name: str = "public.watch", within_s: float = 60) -> None:
        """Wait until everything written by now has been through an epoch, seen in a view that
        nobody attacks."""
        ((position,),) = self.database.rows("SELECT pg_current_wal_insert_lsn()")
        deadline = time.monotonic() + within_s
        while True:
            path = f"/views/{name}/wait?position={position}&timeout_s=5"
            if self.ask("GET", path).status_code == 200:
                return
            assert self.service is not None
            assert time.monotonic() < deadline, self.service.log_tail()

    # --- the oracle --------------------------------------------------------------------------

    def notes(self) -> list[Note]:
        """What has been noted since the last look."""
        text = self.database.server.log_text()
        new, self.seen = text[self.seen :], len(text)
        return [Note(*found) for found in _NOTE.findall(new)]

    def harmed(self) -> list[str]:
        """What must not have happened since the last look."""
        faults = [
            f"{n.place} ran as {n.user} ({n.reach.strip()}) in {n.application}, {n.way}"
            for n in self.notes()
            if n.application.startswith("tidemark")
            and (n.user == self.login or n.reach.strip() != "f")
        ]
        lines = self.database.rows("SELECT line FROM vault.ledger")
        return [*dict.fromkeys(faults), *(f"written: {line}" for (line,) in lines)]

    def require_unharmed(self, *texts: str) -> None:
        """No code of mallory's ran with rights that are not hers, and none of these texts, answers
        that she can read, has what is not hers to read."""
        assert self.harmed() == []
        for text in texts:
            assert TREASURE not in text, text
        self.settle()


@contextmanager
def ground_of(database: Database, folder: Path, kind: str) -> Iterator[Ground]:
    """A set-up: "super"; "role", a service of deploy/role.sql that is a member of mallory, whose
    tables it publishes; "apart", one that is no member of hers."""
    mallory, alice = f"mallory_{database.name}", f"alice_{database.name}"
    login = "postgres" if kind == "super" else f"service_{database.name}"
    names = [mallory, alice] + ([] if kind == "super" else [login])
    made = Ground(database, kind == "super", login, mallory, {"alice": alice})
    for name in (mallory, alice):
        database.execute(f"CREATE ROLE {name} LOGIN")
    try:
        database.execute(VAULT)
        database.execute(f"CREATE SCHEMA m AUTHORIZATION {mallory}")
        database.execute(f"GRANT CREATE, USAGE ON SCHEMA public TO {alice}")
        database.execute(f"GRANT SELECT ON public.shared TO {mallory}, {alice}")
        made.attack(ARMS)
        if kind == "apart":
            # Nothing of hers is there yet that has to be published.
            database.execute("ALTER TABLE m.t OWNER TO postgres")
        if kind != "super":
            _harden(made)
            if kind == "apart":
                database.execute(f"ALTER TABLE m.t OWNER TO {login}; GRANT ALL ON m.t TO {mallory}")
        else:
            prepare(Desired(database.dsn, database.dsn, None), is_dry=False)
        script = Path("deploy/creators.sql").read_text()
        for creator in (mallory, alice):
            assert psql(database, script, creators=creator).returncode == 0
        with RunningService(made.dsn, folder) as service:
            made.service = service
            _make_tokens(made)
            answer = made.ask(
                "POST",
                "/views?wait_s=60",
                {"name": "public.watch", "query": "SELECT id, a FROM public.shared"},
            )
            assert answer.json().get("status") == "live", answer.text
            made.notes()
            yield made
    finally:
        for name in names:
            database.execute(
                f"DO $$ BEGIN IF to_regrole('{name}') IS NOT NULL THEN"
                f" REASSIGN OWNED BY {name} TO postgres; DROP OWNED BY {name} CASCADE;"
                f" DROP ROLE {name}; END IF; END $$"
            )


def _harden(ground: Ground) -> None:
    database, login = ground.database, ground.login
    database.execute(
        f"CREATE ROLE {login} LOGIN; ALTER TABLE public.shared OWNER TO {login};"
        f"GRANT USAGE ON SCHEMA vault TO {login};"
        f"GRANT ALL ON ALL TABLES IN SCHEMA vault TO {login}"
    )
    script = Path("deploy/role.sql").read_text()
    ended = psql(database, script, role=login, schemas="public,m", views="public,m")
    assert ended.returncode == 0, ended.stderr
    prepare(Desired(ground.dsn, ground.dsn, None, schemas=("public", "m")), is_dry=False)


def _make_tokens(ground: Ground) -> None:
    wanted = {
        "admin": ("admin", None),
        "operator": ("operator", None),
        "reader": ("reader", None),
        "mallory": ("operator", ground.mallory),
        "spy": ("reader", ground.mallory),
    }
    for name, (role, db_role) in wanted.items():
        body = {"name": name, "role": role} | ({"db_role": db_role} if db_role else {})
        answer = ground.ask("POST", "/tokens", body)
        if answer.status_code == 201:
            ground.tokens[name] = answer.json()["token"]
        else:
            assert db_role, answer.text
