"""Oracle: Python over the rows that each driver itself returns, and the servers' own values."""

from __future__ import annotations

import csv
import datetime
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import psycopg2
import psycopg2.extras
import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, ObjectId, Regex, Timestamp
from pymongo import MongoClient

import tidemark
from tests.connectors.http.server import Reply, Server
from tests.connectors.mongodb.replica_set import ReplicaSet
from tests.harness.mariadb import MariaDb
from tests.harness.postgres import Database

UTC = datetime.UTC
CUSTOMERS = """
DROP TABLE IF EXISTS people;
CREATE TABLE people (id bigint PRIMARY KEY, name text, tags text[], info jsonb, since timestamptz,
    born date, raw bytea, spent numeric(10,2), span int8range, days daterange, woken timetz);
INSERT INTO people VALUES
    (1, 'Ada', '{a,NULL}', '{"n": [1, 2.5]}', '2024-02-29 12:00+02', '1815-12-10', '\\x00ff', 1.50,
     '[1,5)', '[2024-01-01,2024-02-01)', '07:30+02'),
    (2, NULL, '{}', NULL, NULL, NULL, NULL, NULL, 'empty', NULL, NULL);
"""
ORDERS = """CREATE TABLE orders (id int PRIMARY KEY, person bigint, product int,
    amount decimal(10,2), at datetime(6), took time, raw blob, is_paid tinyint(1))"""


def refusal_of(call: Callable[..., object], *given: Any, **named: Any) -> tidemark.TidemarkError:
    with pytest.raises(tidemark.TidemarkError) as caught:
        call(*given, **named)
    return caught.value


class Shop:
    """Functions over five systems, each as a user writes it with that system's own driver."""

    def __init__(self, dsn: str, mariadb: MariaDb, mongodb: int, rest: str, file: Path) -> None:
        self._dsn, self._mariadb, self._mongodb, self._rest = dsn, mariadb, mongodb, rest
        self._file = file

    def people(self) -> Iterator[Any]:
        with psycopg2.connect(self._dsn) as session, session.cursor() as cursor:
            cursor.execute("SELECT id, name FROM people")
            yield from map(dict, [zip(("id", "name"), row, strict=True) for row in cursor])

    def orders(self) -> Any:
        cursor = self._mariadb.session.cursor()
        cursor.execute("SELECT id, person, product, amount FROM orders")
        return cursor

    def reviews(self) -> Iterator[Any]:
        with MongoClient("127.0.0.1", self._mongodb, directConnection=True) as client:
            yield from client["shop"]["reviews"].find()

    def products(self) -> Any:
        return httpx.get(self._rest).json()

    def suppliers(self) -> Iterator[Any]:
        with self._file.open(newline="") as file:
            yield from csv.DictReader(file)

    def answer(self) -> Counter[tuple[Any, ...]]:
        """The query of the test, in Python."""
        names = {row["id"]: row["name"] for row in self.people()}
        prices = {row["id"]: row["price"] for row in self.products()}
        suppliers = {int(row["product"]): row["supplier"] for row in self.suppliers()}
        stars = {row["order"]: row["stars"].to_decimal() for row in self.reviews()}
        return Counter(
            (names[person], suppliers[product], amount, prices[product], stars[number])
            for number, person, product, amount in self.orders()
        )


QUERY = """
SELECT p.name, s.supplier, o.amount, d.price, r.stars
FROM orders_of_mariadb o
JOIN people_of_postgres p ON p.id = o.person
JOIN reviews_of_mongodb r ON r."order" = o.id
JOIN products_of_rest d ON d.id = o.product
JOIN suppliers_of_csv s ON s.product::bigint = o.product
"""


def test_functions_over_five_systems_in_one_query(
    engine: tidemark.Engine, own_database: Database, mariadb: MariaDb, tmp_path: Path
) -> None:
    own_database.execute(CUSTOMERS)
    mariadb.execute(ORDERS)
    for n in range(1, 5):
        mariadb.execute(
            "INSERT INTO orders (id, person, product, amount) VALUES (%s, %s, %s, %s)",
            (n, n % 2 + 1, n % 3, f"{n}.25"),
        )
    file = tmp_path / "suppliers.csv"
    file.write_text("product,supplier\n0,zero\n1,\n2,two\n")
    with Server().running() as rest, ReplicaSet().running() as mongodb:
        rest.answer = lambda _: Reply([{"id": n, "price": n + 0.5} for n in range(3)])
        for n in range(1, 5):
            mongodb.put(
                "reviews", {"_id": ObjectId(), "order": Int64(n), "stars": Decimal128(f"{n}.10")}
            )
        shop = Shop(own_database.dsn, mariadb, mongodb.port, rest.url, file)
        names = {
            "people_of_postgres": (shop.people, "id"),
            "orders_of_mariadb": (shop.orders, "id"),
            "reviews_of_mongodb": (shop.reviews, "_id"),
            "products_of_rest": (shop.products, "id"),
            "suppliers_of_csv": (shop.suppliers, "product"),
        }
        types = {n: engine.register(n, f, key=k).columns for n, (f, k) in names.items()}
        assert types["reviews_of_mongodb"] == {"_id": "text", "order": "bigint", "stars": "numeric"}
        assert types["orders_of_mariadb"]["amount"] == "numeric"
        assert types["suppliers_of_csv"] == {"product": "text", "supplier": "text"}
        assert Counter(map(tuple, engine.query(QUERY))) == shop.answer()
        view = engine.view(QUERY, "five")
        assert Counter(map(tuple, view.rows())) == shop.answer()
        mariadb.execute("UPDATE orders SET amount = 99.99 WHERE id = 2")
        file.write_text("product,supplier\n0,none\n1,one\n2,two\n")
        mongodb.put("reviews", {"_id": ObjectId(), "order": 9, "stars": Decimal128("5")})
        done = engine.refresh()
        assert (done["orders_of_mariadb"].updated, done["suppliers_of_csv"].updated) == (1, 2)
        engine.wait()
        assert Counter(map(tuple, view.rows())) == shop.answer()

        # What a stranger writes first: the file's numbers are texts.
        wrong = QUERY.replace("s.product::bigint = o.product", "s.product = o.product")
        for call in (engine.query, engine.view):
            error = refusal_of(call, wrong)
            assert error.code == "sql.undefined_function"
            assert error.detail == "s.product is text, o.product is bigint"
            assert "s.product::bigint = o.product" in error.hint
            assert error.position is not None
            line = wrong.splitlines()[error.position.line - 1]
            assert line[error.position.column - 1 :] == "= o.product"
        view.drop()
        for name in names:
            engine.unregister(name)


def test_values_of_postgres_are_what_they_were(
    engine: tidemark.Engine, own_database: Database
) -> None:
    own_database.execute(CUSTOMERS)

    def read(factory: Any = None) -> Any:
        session = psycopg2.connect(own_database.dsn)
        cursor = session.cursor(cursor_factory=factory)
        cursor.execute("SELECT * FROM people ORDER BY id")
        return cursor

    expected = own_database.rows("SELECT p::text FROM people p ORDER BY id")
    extras = psycopg2.extras
    for factory in (None, extras.RealDictCursor, extras.DictCursor, extras.NamedTupleCursor):
        state = engine.register("copied", lambda factory=factory: read(factory), key="id")
        assert list(state.columns.items()) == [
            ("id", "bigint"),
            ("name", "text"),
            ("tags", "text[]"),
            ("info", "jsonb"),
            ("since", "timestamp with time zone"),
            ("born", "date"),
            ("raw", "bytea"),
            ("spent", "numeric"),
            ("span", "int8range"),
            ("days", "daterange"),
            ("woken", "time with time zone"),
        ]
        assert engine.query("SELECT c::text FROM copied c ORDER BY id").rows == expected
    engine.unregister("copied")


def test_values_of_mariadb_are_what_they_were(engine: tidemark.Engine, mariadb: MariaDb) -> None:
    mariadb.execute(ORDERS)
    mariadb.execute(
        "INSERT INTO orders VALUES (1, NULL, 2, 0.10, '2024-02-29 01:02:03.000004', '-26:00:01', "
        "X'00FF', 1), (2, 9223372036854775807, 3, -0.01, NULL, NULL, NULL, 0)"
    )
    found = mariadb.rows("SELECT * FROM orders ORDER BY id")

    def orders() -> Any:
        cursor = mariadb.session.cursor()
        cursor.execute("SELECT * FROM orders")
        return cursor

    engine.register("copied", orders, key="id")
    answer = engine.query("SELECT * FROM copied ORDER BY id")
    assert answer.columns == ("id", "person", "product", "amount", "at", "took", "raw", "is_paid")
    for row, wanted in zip(answer, found, strict=True):
        spans = {"took": None if row.took is None else row.took.timedelta}
        assert tuple((row._asdict() | spans).values()) == wanted
    engine.unregister("copied")
    # MariaDB's own zero date, which PyMySQL returns as text.
    mariadb.execute("SET sql_mode = ''")
    mariadb.execute("CREATE TABLE dates (id int, d date)")
    mariadb.execute("INSERT INTO dates VALUES (1, '2024-01-01'), (2, '0000-00-00')")
    rows = mariadb.rows("SELECT d FROM dates")
    error = refusal_of(engine.register, "dates", rows, columns=["d"])
    assert error.code == "function.mixed_types" and "text such as '0000-00-00'" in error.detail
    error = refusal_of(engine.register, "dates", rows, columns={"d": "date"})
    assert error.code == "function.bad_value" and "row 2" in error.what


def test_values_of_bson_have_a_form_or_are_refused_by_name(engine: tidemark.Engine) -> None:
    number = ObjectId("65f0c0ffee00000000000001")
    document = {
        "_id": number,
        "n": Int64(2**62),
        "d": Decimal128("12345678901234567890.1234567890"),
        "b": Binary(b"\x00\xff", 128),
        "c": Code("f()"),
        "naive": datetime.datetime(2024, 2, 29, 1, 2, 3, 4000),
        "aware": datetime.datetime(2024, 2, 29, tzinfo=UTC),
        "in": {"id": number, "d": [Decimal128("1.10")], "n": Int64(5), "at": [None, {"x": 1}]},
        "list": [number],
    }
    state = engine.register("documents", [document], key="_id")
    assert list(state.columns.values()) == [
        *("text", "bigint", "numeric", "bytea", "text", "timestamp without time zone"),
        *("timestamp with time zone", "jsonb", "text[]"),
    ]
    (row,) = engine.query('SELECT *, "in"::text AS shown FROM documents')
    assert (row._id, row.n, row.d) == (str(number), 2**62, document["d"].to_decimal())
    assert (row.b, row.naive, row.aware) == (b"\x00\xff", document["naive"], document["aware"])
    assert row.list == [str(number)]
    assert row.shown == (f'{{"d": [1.10], "n": 5, "at": [null, {{"x": 1}}], "id": "{number}"}}')
    engine.unregister("documents")
    for value in (Regex("a"), Timestamp(1, 2), MaxKey()):
        name = f"bson.{type(value).__name__}"
        error = refusal_of(engine.register, "f", [{"a": value}])
        assert error.code == "function.mixed_types" and name in error.detail
        for columns in ({"a": "text"}, {"a": "jsonb"}):
            rows = [{"a": None}, {"a": [value] if columns["a"] == "jsonb" else value}]
            error = refusal_of(engine.register, "f", rows, columns=columns)
            assert error.code == "function.bad_value" and name in error.detail, columns
            assert "row 2" in error.what


def test_values_of_a_rest_api(engine: tidemark.Engine) -> None:
    with Server().running() as rest:
        text = b'[{"id": 1, "n": 123456789012345678901234567890, "f": NaN, "o": {"a": [1.5]}}]'
        rest.answer = lambda _: Reply(text)
        state = engine.register("items", lambda: httpx.get(rest.url).json(), key="id")
        assert dict(state.columns) == {
            "id": "bigint",
            "n": "numeric",
            "f": "double precision",
            "o": "jsonb",
        }
        (row,) = engine.query("SELECT * FROM items")
        assert row.n == 123456789012345678901234567890 and row.f != row.f and row.o == {"a": [1.5]}
        # Nothing of JSON can be a number without end, so no document has one.
        rest.answer = lambda _: Reply(b'[{"id": 1, "n": 1, "f": 1, "o": {"a": [Infinity]}}]')
        error = refusal_of(engine.refresh, "items")
        assert error.code == "function.bad_value" and 'column "o"' in error.detail
        # A page around the rows, and a number that the rows before did not need.
        rest.answer = lambda _: Reply({"items": []})
        assert refusal_of(engine.refresh, "items").code == "function.bad_row"
        many = [{"id": n} for n in range(1000)]
        rest.answer = lambda _: Reply([*many, {"id": 2**63}])
        error = refusal_of(engine.register, "more", lambda: httpx.get(rest.url).json())
        assert error.code == "function.bad_value" and "row 1001" in error.what
    engine.unregister("items")


def test_texts_of_a_csv_file(engine: tidemark.Engine, tmp_path: Path) -> None:
    file = tmp_path / "people.csv"

    def people() -> Iterator[Any]:
        with file.open(newline="") as opened:
            yield from csv.DictReader(opened)

    file.write_text("id,born\n1,\n007,1815-12-10\n")
    state = engine.register("people_of_csv", people)
    assert dict(state.columns) == {"id": "text", "born": "text"}
    assert Counter(engine.query("SELECT * FROM people_of_csv")) == Counter(
        [("1", ""), ("007", "1815-12-10")]
    )
    columns = {"id": "bigint", "born": "date"}
    error = refusal_of(engine.register, "people_of_csv", people, columns=columns)
    assert error.code == "function.bad_value" and "row 1" in error.what
    nulls = [{name: text or None for name, text in row.items()} for row in people()]
    engine.register("people_of_csv", nulls, columns=columns)
    assert engine.query("SELECT * FROM people_of_csv ORDER BY id").rows == [
        (1, None),
        (7, datetime.date(1815, 12, 10)),
    ]
    file.write_text("id,born\n1,2\n1,2,3\n")
    error = refusal_of(engine.register, "people_of_csv", people)
    assert error.code == "function.bad_row" and "more values than there are names" in error.detail
    engine.unregister("people_of_csv")


def test_rows_of_more_kinds(engine: tidemark.Engine) -> None:
    expected = [(1, "a"), (2, None)]
    point = pytest.importorskip("attrs").make_class("Point", ["id", "name"])
    session = sqlite3.connect(":memory:", check_same_thread=False)
    session.execute("CREATE TABLE t (id, name)")
    session.executemany("INSERT INTO t VALUES (?, ?)", expected)
    session.commit()
    by_name = sqlite3.connect(":memory:", check_same_thread=False)
    session.backup(by_name)
    by_name.row_factory = sqlite3.Row
    kinds: dict[str, Any] = {
        "cursor": lambda: session.execute("SELECT id, name FROM t"),
        "rows by name": lambda: by_name.execute("SELECT name, id FROM t").fetchall(),
        "attrs": [point(*row) for row in expected],
        "rows of an answer": lambda: engine.query(
            "SELECT 1 AS id, 'a' AS name UNION SELECT 2, NULL"
        ),
    }
    for kind, source in kinds.items():
        engine.register("kinds", source)
        found = engine.query("SELECT id, name FROM kinds ORDER BY id").rows
        assert found == expected, kind
    # Other names than the cursor's are by position, as of any tuples.
    engine.register("kinds", kinds["cursor"], columns=["n", "text"])
    assert engine.query('SELECT n, "text" FROM kinds ORDER BY n').rows == expected
    twice = lambda: session.execute("SELECT id, id FROM t")  # noqa: E731
    error = refusal_of(engine.register, "kinds", twice)
    assert error.code == "function.bad_row" and 'two columns named "id"' in error.detail
    engine.unregister("kinds")


def test_frames_are_rows(engine: tidemark.Engine) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"id": [1, 2], "name": ["a", None], "d": [Decimal("1.50"), None]})
    engine.register("frame", frame, key="id")
    assert engine.query("SELECT * FROM frame ORDER BY id").rows == [
        (1, "a", Decimal("1.50")),
        (2, None, None),
    ]
    error = refusal_of(engine.register, "lazy", lambda: frame.lazy())
    assert error.code == "function.bad_row" and "LazyFrame" in error.detail
    engine.unregister("frame")
