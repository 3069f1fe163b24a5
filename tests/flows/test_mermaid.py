"""The graph of a workflow as text."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

import pytest

from supervisor.flows import JoinConfig, JoinStrategy, Workflow
from tests.flows.walking import S


def fetch() -> S:
    return S.B


def look() -> S:
    return S.DONE


class Big:
    def run(self) -> None: ...


def test_the_graph_shows_states_splits_routers_exits_and_arrows() -> None:
    workflow = (
        Workflow()
        .register(S.A, fetch, next_states=[S.B, S.A])
        .register_split(S.B, [fetch, look, Big()], JoinConfig(JoinStrategy.ALL, S.C))
        .register_router(S.C, look, next_states=[S.A, S.DONE])
        .add_exit_states([S.DONE, S.OTHER])
    )
    assert workflow.to_mermaid() == (
        "stateDiagram-v2\n"
        "    A: S.A\n"
        "    B: S.B (split#58; fetch, look, Big)\n"
        "    C: S.C (router)\n"
        "    DONE: S.DONE\n"
        "    OTHER: S.OTHER\n"
        "    A --> B\n"
        "    A --> A\n"
        "    B --> C\n"
        "    C --> A\n"
        "    C --> DONE\n"
        "    DONE --> [*]\n"
        "    OTHER --> [*]\n"
    )


def test_an_empty_workflow_is_an_empty_graph() -> None:
    assert Workflow().to_mermaid() == "stateDiagram-v2\n"


def test_an_exit_state_with_a_task_is_drawn_once() -> None:
    text = Workflow().register(S.A, fetch).add_exit_state(S.A).to_mermaid()
    assert text.count("S.A") == 1
    assert "A --> [*]" in text


def test_a_hint_that_is_no_state_draws_nothing() -> None:
    assert "-->" not in Workflow().register(S.A, fetch, next_states=[S.OTHER]).to_mermaid()


def test_the_graph_can_be_drawn_before_the_workflow_is_complete() -> None:
    text = Workflow().register_split(S.A, [], JoinConfig(JoinStrategy.ALL, S.B)).to_mermaid()
    assert "S.A (split" in text


class Order(Enum):
    END = 1
    STATE = 2


class Other(Enum):
    END = 1


@pytest.mark.parametrize(
    "states", [[Order.END, Other.END], [Order.STATE, "note"], ["s1", "s0"], [1, 2], [(1,), (2,)]]
)
def test_states_whose_names_are_no_plain_words_of_their_own_are_numbered(states: list[Any]) -> None:
    workflow = Workflow()
    for state in states:
        workflow.register(state, fetch, next_states=states)
    ids = re.findall(r"^    (\w+): ", workflow.to_mermaid(), re.MULTILINE)
    assert ids == ["s0", "s1"]


@pytest.mark.parametrize(
    "text", ["a;b", "a#b", 'a"b', "a\nb", "a:b", "a-->b", "%% c", "<b>", "[*]", "{x}", "\x00", "ü"]
)
def test_no_text_can_break_out_of_its_line(text: str) -> None:
    plain = Workflow().register("plain", fetch).to_mermaid()
    drawn = Workflow().register(text, fetch).to_mermaid()
    assert drawn.count("\n") == plain.count("\n")
    (label,) = re.findall(r"^    s0: (.*)$", drawn, re.MULTILINE) or re.findall(
        r"^    \w+: (.*)$", drawn, re.MULTILINE
    )
    without_entities = re.sub(r"#\d+;", "", label)
    assert not set(without_entities) & set(';#":<>[]{}%\x00')
    if text == "ü":
        assert label == "'ü'"


def test_an_entity_is_not_escaped_a_second_time() -> None:
    assert "'#34;#35;#59;'" in Workflow().register('"#;', fetch).to_mermaid()


def test_the_same_workflow_is_drawn_in_the_same_way() -> None:
    workflow = Workflow().add_exit_states({S.DONE, S.OTHER, S.A, S.B})
    assert workflow.to_mermaid() == workflow.to_mermaid()
