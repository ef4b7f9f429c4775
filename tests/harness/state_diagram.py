"""The picture of a view's life in docs/VIEWS.md, drawn from the table of transitions.

`python -m tests.harness.state_diagram` writes it into the page.
"""

from __future__ import annotations

from pathlib import Path

from connectors.view_states import ANY, INITIAL, RULES, STAYING, Rule

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "VIEWS.md"
BEGIN = "<!-- from connectors/view_states.py: python -m tests.harness.state_diagram -->\n"
END = "<!-- end -->\n"
_GROUPS = {STAYING: "staying", ANY: "any"}


def _names(state: str) -> str:
    return state.replace(" ", "_")


def _sources(rule: Rule) -> list[str]:
    group = _GROUPS.get(tuple(rule.sources))
    return [group] if group else [_names(state) for state in rule.sources]


def _listed(rule: Rule) -> str:
    if tuple(rule.sources) == ANY:
        return "any"
    if tuple(rule.sources) == STAYING:
        return "any but `dropping`"
    return ", ".join(f"`{state}`" for state in rule.sources)


def drawn() -> str:
    """Return the picture and the table of events, in Markdown."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for rule in RULES:
        for source in _sources(rule):
            arrows.setdefault((source, _names(rule.target)), []).append(rule.event)
    lines = [
        *("```mermaid", "stateDiagram-v2", "    catching_up: catching up"),
        *("    staying: any state but dropping", "    any: any state"),
        f"    [*] --> {_names(INITIAL)}: create",
        *(f"    {a} --> {b}: {', '.join(events)}" for (a, b), events in arrows.items()),
        *("    dropping --> [*]: the table is gone", "```", ""),
        *("| event | from | to | why |", "|---|---|---|---|"),
        *(f"| {r.event} | {_listed(r)} | `{r.target}` | {r.reason} |" for r in RULES),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the picture into the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + drawn() + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
