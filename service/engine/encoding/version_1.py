"""States of version 1, whose values are pickles: read without their classes and rewritten.

A pickle names modules and classes of its time. Here each such path maps to a name of the format,
never to a class, so that files may move. Unlisted paths are refused, and no code that a pickle
names is run. Invariant: a value is either rewritten or unchanged, and its first byte tells which,
so the upgrade may stop anywhere and start again.
"""

from __future__ import annotations

import datetime
import io
import pickle
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from connectors.sink import Progress, SinkPart, SinkRows, SinkTable
from dataflow.delta import KIND_BOOL, KIND_FLOAT, Column, Delta
from dataflow.errors import InvariantError
from service.engine.encoding.frames import Later, encode_epoch, encode_part, epoch_of
from service.engine.encoding.object_graph import FAULTS, Record, damaged, unknown_type
from service.engine.encoding.registered import REGISTRY, decode, encode
from storage.failpoints import failpoint
from storage.rocks import RocksStore

_PICKLE = b"\x80"
_COMMIT_BYTES = 32 << 20
# By old module and class: the names of the format.
_NAMES: Mapping[str, Mapping[str, str]] = {
    "connectors.postgres.table_facts": {
        "ColumnFacts": "source.column",
        "PartFacts": "source.partition",
        "TableFacts": "source.table",
    },
    "connectors.postgres.table_names": {
        "KnownNames": "view.names",
        "TableNames": "view.table_names",
    },
    "connectors.postgres.wire_shapes": {"ShapeColumn": "source.shape_column"},
    "connectors.sink": {
        "Progress": "1.progress",
        "Return": "epoch.return",
        "SinkEpoch": "1.epoch",
        "SinkPart": "1.part",
        "ViewChange": "epoch.view_change",
    },
    "dataflow.errors": {
        "InvariantError": "error.invariant",
        "Position": "error.position",
        "SinkError": "error.sink",
        "SourceError": "error.source",
        "SqlError": "error.sql",
        "TemporaryError": "error.temporary",
        "TidemarkError": "error.any",
        "ViewError": "error.view",
    },
    "dataflow.expressions.ir": {
        "Call": "expression.call",
        "ColumnRef": "expression.column",
        "InPostgres": "expression.postgres",
        "Literal": "expression.literal",
        "OuterRef": "expression.outer",
    },
    "dataflow.live_tables": {"TableHome": "state.table_home"},
    "dataflow.schema": {
        "Field": "sql.field",
        "Relation": "sql.relation",
        "RelationName": "sql.relation_name",
    },
    "dataflow.shared": {"Home": "state.home"},
    "dataflow.sql.plan": {
        "Aggregate": "plan.aggregate",
        "AggregateCall": "plan.aggregate_call",
        "Apply": "plan.apply",
        "Distinct": "plan.distinct",
        "Filter": "plan.filter",
        "Frame": "plan.frame",
        "FrameBound": "plan.frame_bound",
        "Join": "plan.join",
        "Loop": "plan.loop",
        "Project": "plan.project",
        "Recursive": "plan.recursive",
        "RecursionRef": "plan.recursion_ref",
        "Remember": "plan.remember",
        "Scan": "plan.scan",
        "SemiJoin": "plan.semi_join",
        "SetCall": "plan.set_call",
        "SetOperation": "plan.set_operation",
        "SingleRow": "plan.single_row",
        "SortKey": "plan.sort_key",
        "TableFunction": "plan.table_function",
        "TopK": "plan.top_k",
        "UnionAll": "plan.union_all",
        "Values": "plan.values",
        "ViewPlan": "plan.view",
        "Window": "plan.window",
        "WindowCall": "plan.window_call",
    },
    "dataflow.types": {"SqlType": "sql.type"},
    "service.definition": {"ViewDefinition": "view.definition"},
    "service.engine": {"_Layout": "state.layout"},
    "service.outbox": {"StoredParts": "1.later"},
    "service.source_watch": {"Known": "source.known_table"},
}


def upgrade(state: Path, store: str) -> None:
    """Rewrite the values of a state of version 1 in the format of version 2. StorageError.

    Unfinished builds start again: their spooled changes cannot be read any more.
    """
    for spool in state.glob("builds/*/changes-2.spool"):
        spool.unlink()
    path = state / store
    if not path.is_dir() or not any(path.iterdir()):
        return
    opened = RocksStore(path)
    try:
        _rewrite(opened)
    finally:
        opened.close()


def _rewrite(store: RocksStore) -> None:
    waiting = 0
    for prefix in _VALUES:
        for key in [key for key, _ in store.items(prefix)]:
            failpoint("state.upgrade.value")
            value = store.get(key) or b""
            if not value.startswith(_PICKLE):
                continue
            written = rewritten(key, value)
            store.put(key, written)
            waiting += len(written)
            if waiting > _COMMIT_BYTES:
                store.commit()
                waiting = 0
    store.commit(sync=True)


def rewritten(key: str, stored: bytes) -> bytes:
    """Return a pickled value of a store in the format of version 2.

    StorageError state.corrupt, state.unknown_type.
    """
    convert = next(convert for prefix, convert in _VALUES.items() if key.startswith(prefix))
    try:
        return convert(_Reader(io.BytesIO(stored)).load())
    except (*FAULTS, EOFError, InvariantError, pickle.UnpicklingError) as error:
        raise damaged(f'"{key}" of version 1: {type(error).__name__}: {error}'[:300]) from error


def _epoch(found: Record) -> bytes:
    """Return an epoch of the outbox in the new format."""
    facts = _fields_of(found, "1.epoch")
    progress, later = _fields_of(facts["progress"], "1.progress"), facts["later"]
    rest = {
        name: decode(encode(facts[name]))
        for name in ("swaps", "refusals", "left_out", "changes", "returns", "tokens")
    }
    epoch = epoch_of(
        Progress(progress["epoch"], progress["positions"]),
        SinkRows(facts["deltas"], facts["errors"], facts["rejected"]),
        facts["commit_time_us"],
        rest,
    )
    if later is None:
        return encode_epoch(epoch)
    parts = _fields_of(later, "1.later")
    return encode_epoch(epoch, Later(parts["count"], parts["nbytes"], parts["rows"]))


def _part(found: Record) -> bytes:
    facts = _fields_of(found, "1.part")
    return encode_part(SinkPart(facts["deltas"], facts["errors"]))


def _fields_of(found: Record, name: str) -> Mapping[str, Any]:
    if found.name != name:
        raise ValueError(f"found {found.name}, not {name}")
    return found.fields


_VALUES: Mapping[str, Callable[[Any], bytes]] = {
    "view/": encode,
    "layout": encode,
    "tables": encode,
    "outbox/": _epoch,
    "outbox-part/": _part,
}


class _Reader(pickle.Unpickler):
    """Make Records of the classes that a pickle names; refuse all names not listed above."""

    def find_class(self, module: str, name: str, /) -> Any:
        """Return the replacement of a name. StorageError state.unknown_type."""
        found = _NAMES.get(module, {}).get(name)
        if found is not None:
            return _record_type(found)
        function = _FUNCTIONS.get((module, name))
        if function is None:
            raise unknown_type(f"{module}.{name}")
        return function


@cache
def _record_type(name: str) -> type[Record]:
    return type("_Record", (Record,), {"name": name, "fields": {}, "__setstate__": _fill})


def _fill(record: Record, state: dict[str, Any]) -> None:
    record.fields = state


def _table(packed: bytes) -> SinkTable:
    """Decode a view's table, which was a pickle within the others."""
    schema, name, fields, key = _Reader(io.BytesIO(packed)).load()
    values = {"schema": schema, "name": name, "fields": fields, "key": key}
    return decode(encode(Record("view.table", values)))


def _error(kind: type[Record], code: str, what: str, *facts: Any) -> Record:
    found = kind.__new__(kind)
    names = ("detail", "hint", "position", "relation")
    found.fields = {"code": code, "what": what, **dict(zip(names, facts, strict=True))}
    return found


def _delta(columns: Iterable[tuple[str, Any, Any, Any]], weights: Any) -> Delta:
    """Decode rows, which were their bare buffers; writable buffers become writable again."""
    made = []
    for kind, values, valid, content in columns:
        dtype = {KIND_FLOAT: np.float64, KIND_BOOL: np.bool_}.get(kind, np.int64)
        mask = None if valid is None else np.frombuffer(valid, np.bool_)
        texts = None if content is None else np.frombuffer(content, np.uint8)
        made.append(Column(np.frombuffer(values, dtype), mask, texts))
    return Delta(made, np.frombuffer(weights, np.int64))


def _kind(value: str) -> Any:
    """Return a type's kind from its value, which was its name in lower case."""
    return REGISTRY.member("sql.kind", value.upper())


_FUNCTIONS: Mapping[tuple[str, str], Any] = {
    ("connectors.sink", "_unpacked"): lru_cache(maxsize=1024)(_table),
    ("dataflow.errors", "_rebuild"): _error,
    ("dataflow.types", "TypeKind"): _kind,
    ("storage.delta", "_restored"): _delta,
    ("datetime", "datetime"): datetime.datetime,
    ("datetime", "timedelta"): datetime.timedelta,
    ("datetime", "timezone"): datetime.timezone,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "set"): set,
}
