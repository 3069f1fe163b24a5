"""Draw a workflow as a Mermaid state diagram. Pure text."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from supervisor.flows.errors import label

__all__ = ["Node", "draw"]


_WORD = re.compile(r"[A-Za-z_](?!\d+$)[A-Za-z_0-9]*")  # never like the numbered ones
_RESERVED = {
    "as", "choice", "class", "classdef", "click", "default", "direction", "end", "fork", "hide", "join", "note",
    "scale", "state", "style",
}  # fmt: skip
_AS_IT_IS = frozenset(" _.,()'/+=!?&*")


class Node(NamedTuple):
    """One state of the graph."""

    state: Hashable
    kind: str  # "task", "router", "split" or "exit"
    tasks: tuple[str, ...]  # names
    following: tuple[Hashable, ...]
    is_exit: bool


def draw(nodes: Sequence[Node]) -> str:
    """Return the lines of a `stateDiagram-v2`; exit states lead to its end, splits show their tasks."""
    ids = _ids([node.state for node in nodes])
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


def _ids(states: Sequence[Hashable]) -> dict[Hashable, str]:
    """Name each state by the last part of its label if that is a plain word of its own, else by a number."""
    words = [label(state).strip("'").rpartition(".")[2] for state in states]
    plain = {
        word
        for word in words
        if words.count(word) == 1 and _WORD.fullmatch(word) and word.lower() not in _RESERVED
    }
    return {
        state: word if word in plain else f"s{number}"
        for number, (state, word) in enumerate(zip(states, words, strict=True))
    }


def _escaped(text: str) -> str:
    return "".join(
        each if each.isalnum() or each in _AS_IT_IS else f"#{ord(each)};" if each.isprintable() else " "
        for each in text
    )
