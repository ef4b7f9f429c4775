"""The stable names of types and fields in the state: the only module that ties them to classes.

A name here is part of the format and never changes. A class may move, and an attribute may be
renamed ("name=attribute"). An added field must have a default, because older states lack it.
Removing a field or changing its meaning needs a new state version
(`service/engine/state_version.py`).
"""

from __future__ import annotations

from connectors.postgres.analysis.table_names import KnownNames, TableNames
from connectors.postgres.replication.table_facts import ColumnFacts, PartFacts, TableFacts
from connectors.postgres.replication.used_objects import UsedObject
from connectors.postgres.replication.wire_shapes import KnownTable, ShapeColumn
from connectors.sink import Handover, SinkRepair, SinkTable, ViewChange
from dataflow import errors
from dataflow.expressions import ir
from dataflow.live_tables import TableLocation
from dataflow.plan import nodes as plan
from dataflow.schema import Field, Relation, RelationName, RowType
from dataflow.shared import StateLocation
from dataflow.types import SqlType, TypeKind
from service.engine.definition import ComputedView, StateLayout, ViewDefinition
from service.engine.encoding.object_graph import Registered, Registry


def _type(name: str, kind: type, fields: str) -> Registered:
    pairs = (word.partition("=") for word in fields.split())
    return Registered(name, kind, {stable: attribute or stable for stable, _, attribute in pairs})


_SQL = (
    _type(
        "sql.type",
        SqlType,
        "name oid typmod kind scale is_bytewise collation is_enum is_deterministic hashing base"
        " null_paths",
    ),
    _type("sql.field", Field, "name type is_nullable"),
    _type("sql.relation_name", RelationName, "source schema name"),
    _type(
        "sql.relation",
        Relation,
        "name oid fields key is_full row_estimate is_append numbers is_single",
    ),
    _type("sql.row_type", RowType, "table columns"),
)
_EXPRESSIONS = (
    _type("expression.column", ir.ColumnRef, "index type name"),
    _type("expression.literal", ir.Literal, "text type"),
    _type("expression.call", ir.Call, "function arguments type"),
    _type("expression.postgres", ir.InPostgres, "sql arguments type is_stable may_change"),
    _type("expression.outer", ir.OuterRef, "level index type name"),
)
_PLANS = (
    _type("plan.scan", plan.Scan, "relation columns fields"),
    _type("plan.values", plan.Values, "rows fields"),
    _type("plan.filter", plan.Filter, "input predicate"),
    _type("plan.threshold_filter", plan.ThresholdFilter, "input threshold value operator"),
    _type("plan.threshold_flag", plan.ThresholdFlag, "input threshold value operator"),
    _type("plan.watermark", plan.Watermark, "input clock lateness_us idle_us title fields"),
    _type("plan.late_rows", plan.LateRows, "input watermark value key policy title"),
    _type("plan.final_rows", plan.FinalRows, "input watermarks value width_us"),
    _type("plan.project", plan.Project, "input expressions fields"),
    _type("plan.bounds", plan.Bounds, "value low high is_left"),
    _type("plan.join", plan.Join, "kind left right left_keys right_keys residual fields bounds"),
    _type(
        "plan.as_of_join",
        plan.AsOfJoin,
        "kind left right left_keys right_keys value operator order fields",
    ),
    _type("plan.semi_join", plan.SemiJoin, "kind left right left_keys right_keys residual bounds"),
    _type(
        "plan.aggregate_call",
        plan.AggregateCall,
        "function argument is_distinct filter field arguments sql direct alike fraction"
        " is_descending rows_by",
    ),
    _type("plan.aggregate", plan.Aggregate, "input groups calls fields"),
    _type(
        "plan.retained_aggregate",
        plan.RetainedAggregate,
        "input groups calls fields watermarks window after_us title",
    ),
    _type("plan.distinct", plan.Distinct, "input"),
    _type("plan.union_all", plan.UnionAll, "inputs fields"),
    _type("plan.single_row", plan.SingleRow, "input"),
    _type("plan.sort_key", plan.SortKey, "expression is_descending nulls_first operator"),
    _type("plan.top_k", plan.TopK, "input partition order limit offset with_ties"),
    _type("plan.shard", plan.Shard, "input count"),
    _type("plan.frame_bound", plan.FrameBound, "kind distance"),
    _type("plan.frame", plan.Frame, "mode start end exclude"),
    _type(
        "plan.window_call",
        plan.WindowCall,
        "function arguments filter frame sql field is_aggregate",
    ),
    _type("plan.window", plan.Window, "input partition order calls fields"),
    _type("plan.remember", plan.Remember, "input expressions fields by_arguments"),
    _type("plan.set_call", plan.SetCall, "sql arguments fields width columns"),
    _type(
        "plan.table_function",
        plan.TableFunction,
        "input calls has_ordinality is_outer fields condition in_select",
    ),
    _type("plan.set_operation", plan.SetOperation, "kind is_all left right compared"),
    _type("plan.recursion_ref", plan.RecursionRef, "name fields"),
    _type("plan.recursive", plan.Recursive, "name base step is_distinct fields"),
    _type("plan.loop", plan.Loop, "name inputs body keys fields"),
    _type("plan.apply", plan.Apply, "kind left right residual fields"),
    _type(
        "plan.view",
        plan.ViewPlan,
        "root key warnings evaluates pinned time_zone refresh_us row_types",
    ),
)
_VIEWS = (
    _type("view.table", SinkTable, "schema name fields key final"),
    _type("view.names", KnownNames, "server tables listed objects text"),
    _type("view.used_object", UsedObject, "catalog oid kind name content labels is_direct"),
    _type("view.table_names", TableNames, "oid schema name columns"),
    _type(
        "view.definition",
        ViewDefinition,
        "identity table query plan rebuilt version role names computed",
    ),
    _type("view.computed", ComputedView, "identity name digest is_named"),
    _type("state.layout", StateLayout, "homes=locations tables"),
    _type("state.home", StateLocation, "scope name"),
    _type("state.table_home", TableLocation, "scope relation columns dead is_stored"),
)
_SOURCE_TABLES = (
    _type("source.known_table", KnownTable, "facts shapes until"),
    _type("source.shape_column", ShapeColumn, "number name oid typmod version"),
    _type("source.column", ColumnFacts, "field version is_sent labels"),
    _type(
        "source.partition",
        PartFacts,
        "title kind identity file link has_untold=has_unreported emptied_by",
    ),
    _type(
        "source.table",
        TableFacts,
        "oid schema name kind identity file key_id is_published seen key identity_key columns parts"
        " membership publication withheld",
    ),
)
_ERROR = "code what detail hint position relation option"
_EPOCHS = (
    _type(
        "epoch.view_change",
        ViewChange,
        "identity before table facts is_renewed=is_replaced status ends hands_over",
    ),
    _type("epoch.handover", Handover, "sink_key epoch positions relations"),
    _type("epoch.return", SinkRepair, "follows live group is_default"),
    _type("error.position", errors.Position, "line column"),
    _type("error.any", errors.TidemarkError, _ERROR),
    _type("error.sql", errors.SqlError, _ERROR),
    _type("error.source", errors.SourceError, _ERROR),
    _type("error.sink", errors.SinkError, _ERROR),
    _type("error.temporary", errors.TemporaryError, _ERROR),
    _type("error.view", errors.ViewError, _ERROR),
    _type("error.invariant", errors.InvariantError, _ERROR),
)

REGISTRY = Registry(
    (*_SQL, *_EXPRESSIONS, *_PLANS, *_VIEWS, *_SOURCE_TABLES, *_EPOCHS), {"sql.kind": TypeKind}
)
encode, decode = REGISTRY.encode, REGISTRY.decode
