"""Draw a workflow as a Mermaid state diagram. Pure text."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from supervisor.flows.errors import label

__all__ = ["Node", "draw"]


class Node(NamedTuple):
    """One state of the graph."""

    state: Hashable
    kind: str  # "task", "router", "split" or "exit"
    tasks: tuple[str, ...]  # names
    following: tuple[Hashable, ...]
    is_exit: bool


def draw(nodes: Sequence[Node]) -> str:
    """Return the lines of a `stateDiagram-v2`; exit states lead to its end, splits show their tasks."""
    ids = {node.state: f"s{number}" for number, node in enumerate(nodes)}
    lines = ["stateDiagram-v2"]
    for node in nodes:
        text = label(node.state)
        if node.kind == "split":
            text += f" (split: {', '.join(node.tasks)})"
        elif node.kind == "router":
            text += " (router)"
        lines.append(f"    {ids[node.state]}: {_escaped(text)}")
    for node in nodes:
        for following in node.following:
            if following in ids:
                lines.append(f"    {ids[node.state]} --> {ids[following]}")
        if node.is_exit:
            lines.append(f"    {ids[node.state]} --> [*]")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    for plain, entity in (("#", "#35;"), ('"', "#quot;"), (";", "#59;"), ("\n", " "), (":", "#58;")):
        text = text.replace(plain, entity)
    return text
