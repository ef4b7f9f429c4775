"""`tidemark verify` and `tidemark validate`: check a view's rows, and estimate a new view.

Both print for people; --json prints the service's whole response.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

import tidemark
from service.cli.output import Url, client_of, console, print_problem, read_text, table_of

DEFAULT_URL = tidemark.DEFAULT_URL
_SIGNS = {"missing": "-", "surplus": "+", "period": "period", "overlap": "overlap"}
_HISTORY_KINDS = ("missing", "surplus", "different", "periods", "overlaps")


def verify(
    name: str,
    limit: Annotated[int, typer.Option(help="maximum number of differing rows to print")] = 20,
    timeout_s: Annotated[float, typer.Option(help="seconds to wait for the result")] = 600,
    as_json: Annotated[bool, typer.Option("--json", help="the whole response as JSON")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Compare a view with PostgreSQL's answer at the view's position.

    Exit code 1 if rows differ.
    """
    with client_of(url) as client:
        found = client.view(name).verify(limit=limit, timeout_s=timeout_s)
    if as_json:
        console.print_json(json.dumps(found.raw))
    else:
        _print_verified(found)
    if found.result == "different":
        raise typer.Exit(1)


def _print_verified(found: tidemark.VerifyResult) -> None:
    console.print(
        f"{found.view}: [bold]{found.result}[/], {found.rows:,} rows at "
        f"{_positions(found)}, {found.took_ms:,.0f} ms",
        highlight=False,
    )
    for reason in found.reasons:
        console.print(f"  PostgreSQL may return other rows: {reason}", markup=False, soft_wrap=True)
    counts = {name: found.raw[name] for name in ("missing", "surplus", "different", "alike")}
    if any(counts.values()):
        shown = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        console.print(f"  {shown}", highlight=False)
    for example in found.examples:
        _print_example(example)
    if (clock := found.clock) is not None:
        counts = {"missing": clock.missing, "surplus": clock.surplus, "different": clock.different}
        shown = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
        due = f"it had to tick by {clock.due_by:%Y-%m-%d %H:%M:%S+00}"
        console.print(f"  the clock has stopped: {due} ({shown})", markup=False, soft_wrap=True)
    if found.history is not None:
        _print_history(found.history)


def _print_history(found: tidemark.HistoryCheck) -> None:
    counts = {kind: found.raw[kind] for kind in _HISTORY_KINDS}
    wrong = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
    console.print(f"  history: {found.rows:,} rows, {wrong or 'all right'}", highlight=False)
    for example in found.examples:
        _print_example(example, "the view", "its history")


def _positions(found: tidemark.VerifyResult) -> str:
    shown = (f"{s} {position_text(p)}" for s, p in found.positions.items())
    return ", ".join(shown) or "no position"


def position_text(position: Any) -> str:
    """Return the position of a source as people read it: a clock's as a time.

    >>> position_text("0/1A2B3C"), position_text({"now": {"us": 1_769_882_400_500_000}})
    ('0/1A2B3C', '2026-01-31 18:00:00.500000+00')
    >>> position_text({"events": {"0": 42}})
    '{"events":{"0":42}}'
    """
    match position:
        case str():
            return position
        case {"now": {"us": int(us)}} if len(position) == 1:
            at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
            return f"{at:%Y-%m-%d %H:%M:%S.%f}+00"
    return json.dumps(position, separators=(",", ":"))


def _print_example(
    example: tidemark.Difference, left: str = "PostgreSQL", right: str = "the view"
) -> None:
    """Print a difference: - only on the left, + only on the right, ~ different values."""
    expected, got = example.expected or {}, example.found or {}
    if expected and got:
        table = table_of("~", left, right)
        for column, text in (example.key or {}).items():
            table.add_row(column, _cell(text), "")
        for column, text in expected.items():
            if text != got[column]:
                table.add_row(column, _cell(text), _cell(got[column]))
        console.print(table)
        return
    row = ", ".join(f"{c}={_cell(t)}" for c, t in (expected or got).items())
    console.print(f"  {_SIGNS[example.kind]} {row}", markup=False, highlight=False)


def _cell(text: str | None) -> str:
    return "NULL" if text is None else text


def validate(
    query: Annotated[
        str, typer.Argument(help="a file with the SELECT, - reads standard input")
    ] = "",
    execute: Annotated[str, typer.Option("-e", help="the SELECT itself")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="the whole response as JSON")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Analyze a query and estimate its cost; create nothing."""
    with client_of(url) as client:
        found = client.validate(execute or _query_in(query))
    if as_json:
        console.print_json(json.dumps(found.raw))
        return
    keyed = f"keyed view, key: {', '.join(found.key)}"
    unkeyed = f"multiset view without a key ({found.why_no_key})"
    _echo(f"{keyed if found.key else unkeyed}; columns:")
    for field in found.fields:
        _echo(f"  {field.name:30} {field.type}{'' if field.nullable else ' not null'}")
    for warning in found.warnings:
        _echo(f"warning: {warning}")
    for expression in found.in_postgres:
        _echo(f"in PostgreSQL: {expression}")
    _echo(found.plan)
    if found.estimate:
        _print_estimate(found.estimate)


def _query_in(query: str) -> str:
    """Return the query: the content of the file of this name, else the text itself."""
    if query == "-":
        return read_text(query)
    if not query:
        print_problem("request.invalid", "there is no query", "", "give a file, or -e 'SELECT ...'")
        raise typer.Exit(1)
    is_short = len(query) < 4096 and not {"\n", "\0"} & set(query)
    return read_text(query) if is_short and os.path.isfile(query) else query


def _print_estimate(found: tidemark.Estimate) -> None:
    _echo(
        f"reads {found.source_rows:,} rows, returns {found.output_rows:,}; state about "
        f"{_bytes(found.state_bytes)}; backfill about {found.backfill_s:,.1f} s "
        f"({found.engine})"
    )
    if found.engine_reason:
        _echo(f"  {found.engine_reason}")
    for name, effect in found.amplification.items():
        out, touched = f"{effect.rows_out:,g}", f"{effect.rows_touched:,g}"
        _echo(f"  a changed row of {name} changes {out} rows of the view, touches {touched}")
    for risk in found.risks:
        _echo(f"risk: {risk.operator}: {risk.why}")
        _echo(f"  hint: {risk.hint}")
    for note in found.notes:
        _echo(f"note: {note}")


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def _echo(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
