"""Oracle: what boto3 put into the bucket, read by independent libraries."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from connectors.files.options import read_options
from dataflow.errors import SourceError, TemporaryError
from tests.connectors.files.formats import FORMATS, packed, random_rows, read, write
from tests.connectors.files.source_mirror import SourceMirror, make_source
from tests.connectors.files.store import BUCKET, KEYS, Store, running_store
from tests.connectors.files.test_formats import check, options_of, rows_of

LINES = {"columns": [{"name": "id", "type": "int8"}], "format": "jsonl"}


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with running_store() as started:
        yield started


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


def source_of(store: Store, path: str, **more: Any) -> Any:
    relation = {"path": f"s3://{BUCKET}/{path}", **LINES, **more}
    return make_source({"poll_interval_ms": 10, **store.options(), "relations": {"t": relation}})


def ids(kept: SourceMirror) -> dict[tuple[str, int], str | None]:
    return {key: row[0] for key, row in kept.rows.items()}


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("format", FORMATS)
def test_every_format(format: str, is_packed: bool, store: Store) -> None:
    contents = [write(format, random_rows(300, seed)) for seed in (3, 4)]
    files = [packed(content) if is_packed else content for content in contents]
    prefix = f"{format}-{is_packed}"
    store.put(f"{prefix}/1", files[0])
    path = f"s3://{BUCKET}/{prefix}/*"
    source = make_source({**options_of(path, format), **store.options()})
    source.check()
    kept = SourceMirror(source)
    kept.begin(source)
    check(rows_of(kept), read(format, contents[0]))
    store.put(f"{prefix}/2", files[1])
    kept.follow(source, lambda kept: len(kept.rows) == 600)
    wanted = read(format, contents[0]) + read(format, contents[1])
    check(rows_of(kept), wanted)
    kept.load(source)
    check(rows_of(kept), wanted)


def test_new_replaced_and_removed_objects(store: Store) -> None:
    store.put("w/day=1/a b%c.jsonl", b'{"id":1}\n{"id":2}\n')
    store.put("w/other.txt", b"no")
    source = source_of(store, "w/**/*.jsonl")
    kept = SourceMirror(source)
    kept.begin(source)
    assert ids(kept) == {("day=1/a b%c.jsonl", 1): "1", ("day=1/a b%c.jsonl", 2): "2"}
    store.put("w/b.jsonl", b'{"id":3}')
    kept.follow(source, lambda kept: len(kept.rows) == 3)
    # Of equal length, within the same second: only the tag tells them apart.
    store.put("w/b.jsonl", b'{"id":4}')
    kept.follow(source, lambda kept: ids(kept)["b.jsonl", 1] == "4")
    store.delete("w/day=1/a b%c.jsonl")
    kept.follow(source, lambda kept: ids(kept) == {("b.jsonl", 1): "4"})


def test_a_long_object_is_read_by_ranges_of_one_version(store: Store) -> None:
    lines = b"".join(b'{"id":%d,"filler":"%s"}\n' % (i, b"x" * 400) for i in range(30_000))
    assert len(lines) > 12 << 20
    store.put("long/a.jsonl", lines)
    source = source_of(store, "long/*.jsonl")
    kept = SourceMirror(source)
    kept.begin(source)
    assert len(kept.rows) == 30_000
    snapshot = source.open_snapshot([kept.relation], {"t": kept.position}, kept.notes)
    part = pickle.loads(pickle.dumps(snapshot.parts(kept.relation, [0], 1)[0]))
    chunks = part.read()
    assert len(next(chunks)) < 30_000
    store.put("long/a.jsonl", lines.replace(b"x", b"y"))
    with pytest.raises(TemporaryError) as changed:
        list(chunks)
    assert changed.value.code == "source.file_changed"


def test_a_bucket_that_is_not_there_and_a_store_that_is_away(store: Store) -> None:
    path = {"path": "s3://no-such-bucket/*.jsonl", **LINES}
    source = make_source({**store.options(), "relations": {"t": path}})
    with pytest.raises(SourceError) as missing:
        source.check()
    assert missing.value.code == "source.bucket_missing"
    gone = {**store.options(), "endpoint": "http://127.0.0.1:1"}
    source = make_source({**gone, "relations": {"t": {**path, "path": "s3://lake/*.jsonl"}}})
    with pytest.raises(TemporaryError) as away:
        source.check()
    assert away.value.code == "source.bucket"


def test_secrets_are_references_and_stay_out_of_sight(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {"secret_key": "hunter2", "relations": {"t": {"path": "s3://b/*.jsonl", **LINES}}}
    with pytest.raises(SourceError) as refused:
        read_options(plain)
    assert refused.value.code == "secret.plain" and "hunter2" not in str(refused.value)
    source = source_of(store, "w/*.jsonl")
    kept = SourceMirror(source)
    kept.begin(source)
    snapshot = source.open_snapshot([kept.relation], {"t": kept.position}, kept.notes)
    for part in snapshot.parts(kept.relation, [0], 1):
        assert KEYS["TIDEMARK_TEST_SECRET_KEY"].encode() not in pickle.dumps(part)
    monkeypatch.delenv("TIDEMARK_TEST_SECRET_KEY")
    with pytest.raises(SourceError) as missing:
        source_of(store, "w/*.jsonl").check()
    assert missing.value.code == "secret.missing"
