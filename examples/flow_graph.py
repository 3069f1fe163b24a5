"""The picture of a workflow: its states and arrows as Mermaid text.

A task decides in code where to go, so the arrows are what `next_states` says; a join's arrow is known. Paste
the text where Mermaid is drawn: a README on GitHub, the documentation, a notebook. `validate` finds all that
is wrong with a workflow at once, before anything runs.

Run it: python examples/flow_graph.py

Prints::

    stateDiagram-v2
        CHECK: Order.CHECK
        COLLECT: Order.COLLECT (split#58; books, records)
        SHIPPED: Order.SHIPPED
        REFUSED: Order.REFUSED
        CHECK --> COLLECT
        CHECK --> REFUSED
        COLLECT --> SHIPPED
        SHIPPED --> [*]
        REFUSED --> [*]
    refused: no exit state, the run could never end; use add_exit_state()
"""

from enum import Enum, auto

from supervisor.flows import ConfigurationError, JoinConfig, JoinStrategy, Workflow


class Order(Enum):
    CHECK = auto()
    COLLECT = auto()
    SHIPPED = auto()
    REFUSED = auto()


def check() -> Order:
    return Order.COLLECT


def books() -> int:
    return 2


def records() -> int:
    return 1


def main() -> None:
    workflow = (
        Workflow()
        .register(Order.CHECK, check, next_states=[Order.COLLECT, Order.REFUSED])
        .register_split(Order.COLLECT, [books, records], JoinConfig(JoinStrategy.ALL, Order.SHIPPED))
        .add_exit_states([Order.SHIPPED, Order.REFUSED])
    )
    print(workflow.to_mermaid(), end="")
    try:
        Workflow().register(Order.CHECK, check).validate(Order.CHECK)
    except ConfigurationError as error:
        print("refused:", error)


if __name__ == "__main__":
    main()
