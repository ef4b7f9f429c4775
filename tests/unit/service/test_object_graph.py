"""Oracle: the objects that went in; what the annotations of the classes say can be in a state; and
the names that the format had when it was made, in `state_format.txt`."""

from __future__ import annotations

import base64
import collections.abc
import dataclasses
import math
import pickle
import random
import types
import typing
import zlib
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import orjson
import pytest
import xxhash

from connectors.postgres.replication.wire_shapes import KnownTable
from connectors.sink import SinkRepair, SinkTable, ViewChange
from dataflow.errors import SinkError, TidemarkError
from dataflow.expressions.ir import Call, ColumnRef, Literal
from dataflow.plan.nodes import Filter, Join, Plan, Scan, ViewPlan
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import BOOL, INT4, SqlType, TypeKind
from service.engine.definition import StateLayout, ViewDefinition
from service.engine.encoding.object_graph import _HEAD, Record, Registered, Registry
from service.engine.encoding.registered import REGISTRY, decode, encode
from storage.errors import StorageError
from tests.harness.trap import Trap

ROOTS = (ViewDefinition, StateLayout, KnownTable, SinkTable, Relation, ViewChange, SinkRepair)
FORMAT = Path(__file__).with_name("state_format.txt")
CODES = {"state.corrupt", "state.unknown_type", "state.unknown_field"}
T = Relation(RelationName("source", "public", "t"), 9, (Field("id", INT4, False),), (0,))
SCAN = Scan(T, (0,), T.fields)
POSITIVE = Call(">", (ColumnRef(0, INT4, "id"), Literal("0", INT4)), BOOL)
ENTRIES = sorted(REGISTRY.types.values(), key=lambda entry: entry.name)


def definition(root: Plan) -> ViewDefinition:
    return ViewDefinition(
        "i", SinkTable("public", "v", root.fields, (0,)), "", ViewPlan(root, (0,))
    )


# --- every type ---------------------------------------------------------------------------------


def hints_of(kind: type) -> dict[str, Any]:
    names: dict[str, Any] = {**vars(typing), **vars(collections.abc)}
    for module in (
        "dataflow.schema",
        "dataflow.plan.nodes",
        "connectors.postgres.replication.wire_shapes",
    ):
        names |= vars(__import__(module, fromlist=["_"]))
    hints = typing.get_type_hints(kind, localns=names)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


def inside(hint: Any) -> list[Any]:
    """The classes that an annotation names."""
    parts = [p for p in typing.get_args(hint) if p is not Ellipsis]
    if parts:
        return [kind for part in parts for kind in inside(part)]
    return [hint] if isinstance(hint, type) else []


def test_every_type_that_a_state_can_hold_is_registered() -> None:
    seen: set[type] = set()
    waiting: list[type] = list(ROOTS)
    while waiting:
        kind = waiting.pop()
        if kind in seen or not (dataclasses.is_dataclass(kind) or issubclass(kind, Enum)):
            continue
        seen.add(kind)
        if issubclass(kind, Enum):
            assert kind in REGISTRY.enums.values(), kind
            continue
        assert kind in {entry.type for entry in ENTRIES}, kind
        for hint in hints_of(kind).values():
            waiting += inside(hint)
    found = {e.type for e in ENTRIES if not issubclass(e.type, Exception)}
    # An error's position and what stands in epochs are reached from their frames.
    assert {kind.__name__ for kind in found - seen} <= {"Position"}
    assert len(seen) > 45


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.name for entry in ENTRIES])
def test_every_field_is_registered(entry: Registered) -> None:
    if issubclass(entry.type, Exception):
        assert set(entry.fields) == set(vars(SinkError("a.b", "c")))
        return
    assert set(entry.fields.values()) == {f.name for f in dataclasses.fields(entry.type)}


def sample(hint: Any, depth: int = 0) -> Any:
    """A value of an annotation that is no default."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return sample(next(p for p in parts if p is not type(None)), depth)
    if origin is tuple:
        one = parts[:1] if parts[-1] is Ellipsis else parts
        return tuple(sample(part, depth) for part in one)
    if origin in (list, set, frozenset):
        return origin([sample(parts[0], depth)])
    if origin in (dict, collections.abc.Mapping):
        return {sample(parts[0], depth): sample(parts[1], depth)}
    if hint in (str, int, bool, float, bytes):
        return {str: "é", int: 1 << 70, bool: True, float: 0.5, bytes: b"\xff"}[hint]
    if hint is Any:
        return ["x", {"y": 1}]
    if issubclass(hint, Enum):
        return list(hint)[-1]
    if hint is SqlType and depth:
        return INT4
    return hint(**{name: sample(h, depth + 1) for name, h in hints_of(hint).items()})


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.name for entry in ENTRIES])
def test_every_type_comes_back(entry: Registered) -> None:
    if issubclass(entry.type, Exception):
        error = entry.type("a.b", "what", detail="d", hint="h", relation=T.name)
        found = decode(encode(error))
        assert type(found) is entry.type and vars(found) == vars(error)
        return
    made = sample(entry.type)
    found = decode(encode(made))
    assert found == made and type(found) is type(made)
    for each in dataclasses.fields(made):
        # Also what is not compared.
        assert getattr(found, each.name) == getattr(made, each.name)


@pytest.mark.parametrize("kind", list(TypeKind))
def test_every_member_comes_back(kind: TypeKind) -> None:
    assert decode(encode(kind)) is kind


def test_an_error_of_a_class_unknown_to_the_format_is_the_nearest_that_is_known() -> None:
    class Fenced(SinkError):
        """One of a module's own."""

    found = decode(encode(Fenced("sink.fenced", "what")))
    assert type(found) is SinkError and found.code == "sink.fenced"


# --- what values and graphs are -----------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, -1, 2**63 - 1, -(2**63), 2**63, -(10**4000), 1.5, -0.0),
        *(math.inf, -math.inf, 5e-324, "", "a\0b", "\ud800 alone", "é\U0001f30a", b"", b"\0\xff"),
        *(
            Decimal("1.10"),
            Decimal("NaN"),
            datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
            datetime(1, 1, 1),
        ),
        *((), (1, (2, ())), [1, [2]], {}, {1: "a", "1": b"b", (1, 2): None}, {"bytes": "x"}),
        *(set(), {1, 2}, frozenset({"a", "b"}), frozenset({T.name}), ["int", ["bytes"]]),
    ],
    ids=lambda _: "value",
)
def test_values_come_back_exactly(value: Any) -> None:
    found = decode(encode(value))
    assert type(found) is type(value)
    assert repr(found) == repr(value) or found == value


def test_true_is_no_number_and_a_number_no_float() -> None:
    found = decode(encode([True, 1, 1.0, 0, False]))
    assert [type(each) for each in found] == [bool, int, float, int, bool]


def test_what_is_one_object_is_one_again_and_equal_ones_stay_apart() -> None:
    filtered, twin = Filter(SCAN, POSITIVE), Filter(SCAN, POSITIVE)
    assert filtered == twin
    keys = (ColumnRef(0, INT4),)
    root = Join("inner", filtered, filtered, keys, keys, None, SCAN.fields)
    top = Join("inner", root, twin, keys, keys, None, SCAN.fields)
    found = decode(encode(definition(top))).plan.root
    assert found == top and hash(found) == hash(top)
    assert found.left.left is found.left.right
    assert found.right is not found.left.left
    assert found.right.input is found.left.left.input
    assert found.left_keys is found.right_keys


def test_nothing_that_is_only_of_this_process_is_written() -> None:
    root = Filter(SCAN, POSITIVE)
    before = encode(root)
    hash(root)
    assert root == Filter(SCAN, POSITIVE)
    assert encode(root) == before


@pytest.mark.parametrize("depth", [5_000, 50_000])
def test_chains_of_any_depth_are_written_and_read(depth: int) -> None:
    root: Plan = SCAN
    for _ in range(depth):
        root = Filter(root, POSITIVE)
    found = decode(encode(root))
    for _ in range(depth):
        assert found.predicate == POSITIVE
        found = found.input
    assert found == SCAN


def test_sets_are_written_in_an_order_of_their_own() -> None:
    names = [f"name {n}" for n in range(50)]
    assert encode(frozenset(names)) == encode(frozenset(reversed(names)))


def test_what_is_part_of_itself_is_no_graph_of_ours() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="part of itself"):
        encode(loop)


# --- the format over time -----------------------------------------------------------------------


def pinned() -> dict[str, tuple[list[str], list[str]]]:
    """The types of the format: by name the fields that must be there, and the others."""
    lines = (line.split(": ") for line in FORMAT.read_text().splitlines())
    halves = {name: fields.partition("|") for name, fields in lines}
    return {name: (first.split(), rest.split()) for name, (first, _, rest) in halves.items()}


def required(entry: Registered) -> list[str]:
    """The fields without a default."""
    if issubclass(entry.type, Exception):
        return ["code", "what"]
    lacking = {
        each.name
        for each in dataclasses.fields(entry.type)
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    }
    return [name for name, attribute in entry.fields.items() if attribute in lacking]


def test_names_of_the_format_stay_and_new_ones_have_a_default() -> None:
    """Whoever adds a type, a field or a member adds it to the file; a field behind the bar, or the
    states of before cannot be read. What goes from the file needs another VERSION."""
    known = pinned()
    for name, kind in REGISTRY.enums.items():
        assert set(kind.__members__) == set(known[name][0])
    assert {entry.name for entry in ENTRIES} == known.keys() - REGISTRY.enums.keys()
    for entry in ENTRIES:
        first, rest = known[entry.name]
        assert (required(entry), set(entry.fields)) == (first, {*first, *rest}), entry.name


# `definition(Filter(SCAN, POSITIVE))` as it was written when the format was made.
GOLDEN = (
    "VE1vZwEAAAA1qtVvHns8ZHichVPBbtswDP0XnbUgbrO06WGH3QYM62U3wwhkm2mEybJrSUmDov++R8qJU+RQJLYo"
    "6vHxkZTfVTwNFNRTWarw6ha8U7pU3nRYVW9bvOHsejb+Wc9LaIzjUxu29SnS0QbeNb1zJtre5xPyqctWS5HGznob"
    "om3g2puwt/4FVm0QWVU6595Zcu1V8qyFGXwCde0mbEwDp2cnbw+Wjosox0zU7KkzCJtIhDSwdjrNqUbKUrcZBWef"
    "xoaktuv4m4Cb3nziF7E76II19sctoeLOxKkKMwwk/UNnahpDZh+c8Qt0VKjnNNzO1PkwpxA0vQ0jhQDIIgM4ClOh"
    "t7lhs/IrtLMYgnEMj/QWz+gbUuMEs0u+mYSY8SV15GP4FCOyd9aBNUsYEpOCqLUNlzyjeEBSXN/HS6OOZvS4BExK"
    "B+MSQtgerPfU5mAZLBcTZEI0HjiXklGHK0hLO1yu83RsC602ns5IrK+JRt6zGp4M1QnCYYEw5CLH3p1bx9SVzE8+"
    "iyVm5yO9cO67e/2t0O9yI+RbeFK//vxdqQ+91HFMpJXSO+MCXXbTJS1Awld7WeVzuO7grWSFs7yHulQ7+T4OAN6x"
    "j49Xer6bF0RUVYZ8x7/SmzN+Sg6N2SjXTLHW5UM+BgyvB6hlJSwJ20etliIti9qwXNmg8rpHX7hpxfqm8p/Pz7+/"
    "rnyj1Q+wFwXTSvoC2R95lfqKAs9qkre+PIJmmslGfyw2ALKvQNFL/MReT+PC5Xoqi4fq4z+OtYhx"
)


def test_what_was_written_once_is_read_for_ever() -> None:
    assert decode(base64.b64decode(GOLDEN)) == definition(Filter(SCAN, POSITIVE))


def test_a_class_that_moves_is_written_alike() -> None:
    before = encode(definition(Filter(SCAN, POSITIVE)))
    names = {e.type: (e.type.__module__, e.type.__qualname__, e.type.__name__) for e in ENTRIES}
    try:
        for kind in names:
            kind.__module__, kind.__qualname__, kind.__name__ = (
                "elsewhere.now",
                "Another",
                "Another",
            )
        assert encode(definition(Filter(SCAN, POSITIVE))) == before
        assert decode(before) == definition(Filter(SCAN, POSITIVE))
    finally:
        for kind, (module, qualname, name) in names.items():
            kind.__module__, kind.__qualname__, kind.__name__ = module, qualname, name


@dataclasses.dataclass(frozen=True)
class Renamed:
    """What took the place of a class with other names."""

    below: Any
    condition: Any
    is_new: bool = False


def test_a_class_and_its_attributes_may_get_other_names() -> None:
    """A field that is added takes its default in what was written before."""
    fields = {"input": "below", "predicate": "condition", "is_new": "is_new"}
    later = registry(Registered("plan.filter", Renamed, fields))
    assert later.decode(encode(Filter(SCAN, POSITIVE))) == Renamed(SCAN, POSITIVE)
    assert later.decode(later.encode(Renamed(1, 2, True))) == Renamed(1, 2, True)


def registry(*changed: Registered) -> Registry:
    """That of a later version."""
    known = {**REGISTRY.types, **{entry.name: entry for entry in changed}}
    return Registry(known.values(), REGISTRY.enums)


def refuse(stored: bytes, code: str, *words: str) -> None:
    with pytest.raises(StorageError) as refused:
        decode(stored)
    assert refused.value.code == code and refused.value.hint
    assert all(word in refused.value.detail for word in words), refused.value.detail


def test_what_a_later_version_has_is_refused_by_name() -> None:
    newer = Registered("plan.newer", Renamed, {"below": "below"})
    refuse(registry(newer).encode([Renamed(1, 2)]), "state.unknown_type", "plan.newer")
    more = Registered("plan.filter", Renamed, {"input": "below", "is_new": "is_new"})
    refuse(registry(more).encode(Renamed(1, 2)), "state.unknown_field", "plan.filter", "is_new")
    kinds = Enum("kinds", [*TypeKind.__members__, "MONEY"])
    enums = Registry(REGISTRY.types.values(), {"sql.kind": kinds})
    refuse(enums.encode(kinds["MONEY"]), "state.unknown_type", "sql.kind.MONEY")


def test_what_lacks_a_field_that_must_be_there_is_damaged() -> None:
    refuse(encode(Record("plan.filter", {"input": SCAN})), "state.corrupt", "predicate")


def test_what_is_not_registered_is_refused_when_it_is_written() -> None:
    with pytest.raises(StorageError, match="Renamed"):
        encode([Renamed(1, 2)])


# --- damage -------------------------------------------------------------------------------------


def test_what_was_changed_or_cut_is_refused() -> None:
    stored = encode(definition(Filter(SCAN, POSITIVE)))
    for length in range(len(stored)):
        refuse(stored[:length], "state.corrupt")
    for at in range(len(stored)):
        for bit in (1, 128):
            changed = bytearray(stored)
            changed[at] ^= bit
            with pytest.raises(StorageError) as refused:
                decode(bytes(changed))
            assert refused.value.code in CODES
    refuse(stored + b"\0", "state.corrupt")


def test_a_pickle_is_never_run(tmp_path: Path) -> None:
    refuse(pickle.dumps(Trap(tmp_path / "ran")), "state.corrupt")
    assert not (tmp_path / "ran").exists()


def sealed(document: Any) -> bytes:
    """A document with a checksum that is right."""
    body = zlib.compress(orjson.dumps(document))
    return _HEAD.pack(b"TMog", 1, xxhash.xxh3_64_intdigest(body, seed=1)) + body


@pytest.mark.parametrize(
    "document",
    [
        *(None, [], {}, {"types": [], "rows": []}, {"types": [], "rows": [], "root": [0]}),
        {"types": [["tuple", None]], "rows": [[0, [0]]], "root": [0]},
        {"types": [["tuple", None]], "rows": [[0], [0, [-1]]], "root": [0]},
        {"types": [["tuple", None]], "rows": [[-1]], "root": [0]},
        {"types": [["tuple", None]], "rows": [[1]], "root": [0]},
        {"types": [["tuple", []]], "rows": [[0]], "root": [0]},
        {"types": [["os.system", ["command"]]], "rows": [[0, "true"]], "root": [0]},
        {"types": [["frozenset", None], ["list", None]], "rows": [[1], [0, [0]]], "root": [1]},
        {"types": [["dict", None]], "rows": [[0, 1]], "root": [0]},
        {"types": [["plan.filter", ["input"]]], "rows": [[0, None]], "root": [0]},
        {"types": [["plan.filter", ["input", "predicate"]]], "rows": [[0, None]], "root": [0]},
        {"types": [], "rows": [], "root": {"bytes": "?", "int": "1"}},
        {"types": [], "rows": [], "root": {"bytes": "?"}},
        {"types": [], "rows": [], "root": {"int": 5}},
        {"types": [], "rows": [], "root": {"moment": "now"}},
        {"types": [], "rows": [], "root": {"decimal": "x"}},
    ],
    ids=str,
)
def test_what_is_no_graph_is_refused_with_a_code(document: Any) -> None:
    with pytest.raises(StorageError) as refused:
        decode(sealed(document))
    assert refused.value.code in CODES


def test_nothing_in_a_document_raises_anything_but_a_code() -> None:
    """Cells exchanged at random, under a checksum that is right."""
    pick = random.Random(0)
    stored = encode(definition(Filter(SCAN, POSITIVE)))
    whole = orjson.loads(zlib.decompress(stored[_HEAD.size :]))
    odd = [None, True, -1, 0, 3, 99, "x", [], [0], [5], [-1], ["x"], {}, {"int": "x"}, 1.5]
    read = 0
    for _ in range(2_000):
        document = orjson.loads(orjson.dumps(whole))
        for _ in range(pick.randint(1, 3)):
            row = pick.choice(document["rows"])
            row[pick.randrange(len(row))] = pick.choice(odd)
        try:
            decode(sealed(document))
            read += 1
        except StorageError as error:
            assert error.code in CODES
    assert read


def test_the_errors_of_tests_are_all_that_there_are() -> None:
    assert {e.type for e in ENTRIES if issubclass(e.type, Exception)} >= {TidemarkError, SinkError}
