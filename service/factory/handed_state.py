"""The state directory of a group that begins with a view of another group.

It is written by the process of the group that gives the view away, beside its own state. Invariant:
once `write_state` returns, the directory is complete and durable, and a process that opens it
continues as after a restart.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from connectors.postgres.replication.wire_shapes import KnownTable
from dataflow.expressions.evaluator import Evaluator
from service.engine.definition import View, ViewDefinition
from service.engine.engine import Engine
from service.engine.handover import Carried, Columns
from service.factory.on_spark import remove_buckets
from service.factory.service_factory import ServiceFactory
from service.ingest.table_watch import of_other_publication, store_tables
from service.views.groups import is_spark_group
from service.views.handover_folder import HandoverFolder
from storage.failpoints import failpoint
from storage.store import Store

# Copies a view's state into a store, by way of an empty folder; returns the stored columns.
CopyState = Callable[[Store, Path], Columns]


def take_up(
    engine: Engine,
    definition: ViewDefinition,
    columns: Columns,
    given: Carried,
    evaluator: Evaluator,
) -> None:
    """Make a view live in an engine without views, whose store has its state; commit it, synced.

    evaluator: the view's. What `Engine.add` raises.
    """
    for epoch in given.epochs:
        engine.retain(epoch)
    for key, value in given.sinks.items():
        engine.store.put(key, value)
    engine.positions.take_up(given.progress, given.notes)
    engine.add(View(definition, engine.store, evaluator, columns))
    # Until its sinks report what they have, the outbox keeps it all.
    written = 0 if given.sinks else engine.epoch
    engine.commit(None, written=written, sync=True)


def write_state(
    factory: ServiceFactory,
    folder: HandoverFolder,
    definition: ViewDefinition,
    given: Carried,
    parts: tuple[CopyState, Mapping[int, KnownTable]],
) -> None:
    """Write the state of a group that has this one view.

    factory: of the group. parts: what copies the view's state, and what is known of its tables.
    TidemarkError; StorageError, OSError of the disk.
    """
    copy_state, tables = parts
    folder.clear()
    if is_spark_group(folder.group):
        # What an attempt that was killed has left.
        remove_buckets(factory.settings)
    made = factory.with_state(folder.state)
    store, files = made.open_store(), folder.state / "files"
    try:
        files.mkdir(parents=True)
        columns = copy_state(store, files)
        shutil.rmtree(files)
        settings = made.settings
        engine = made.new_engine(
            store,
            made.evaluator(),
            made.source.name,
            settings.budget.epoch,
            evaluator_of=made.evaluator,
            few_rows=settings.few_rows,
            while_waiting=lambda: None,
        )
        catalog = made.source.tables()
        try:
            store_tables(store, of_other_publication(catalog, tables))
        finally:
            catalog.close()
        evaluator = made.evaluator(definition.role, definition.plan.time_zone)
        take_up(engine, definition, columns, given, evaluator)
    finally:
        store.close()
        made.close()
    folder.seal()


def discard_state(factory: ServiceFactory, folder: HandoverFolder) -> None:
    """Remove everything that was made for a group that gets no view after all; may be repeated.

    factory: of the group, of which there has never been a process. TemporaryError; SourceError
    source.slot_in_use.
    """
    if is_spark_group(folder.group) and folder.state.is_dir():
        remove_buckets(factory.settings)
    folder.clear()
    failpoint("view.handover.discarded")
    source, control = factory.source, factory.control()
    try:
        source.drop_slot()
        control.delete_source(factory.source_row)
    finally:
        source.close()
        control.close()
    folder.remove()
