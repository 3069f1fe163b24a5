"""Tasks that come and go while the program runs.

A supervisor takes new tasks at any time and from any thread. A name belongs to one task at a time;
once `cancel` has returned, it is free again. `add_all` takes all of a batch or nothing.

Run it: python examples/add_and_remove.py

Prints::

    watching: berlin, lisbon
    watching: lisbon
    berlin is watched again, as another task: True
    refused: lisbon is watched already
    watching: lisbon, berlin
"""

from supervisor import Supervisor, TaskAlreadyExists, TaskContext, TaskSpec


def watch_shop(ctx: TaskContext) -> None:
    while not ctx.wait(1.0):
        pass  # look at the stock of one shop


def shop(name: str) -> TaskSpec:
    return TaskSpec.restartable(name, watch_shop)


def main() -> None:
    with Supervisor() as supervisor:

        def show() -> None:
            print("watching:", ", ".join(task.name for task in supervisor.tasks()))

        before = supervisor.add(shop("berlin"))
        supervisor.add(shop("lisbon"))
        show()

        supervisor.cancel("berlin", timeout=10)
        show()

        after = supervisor.add(shop("berlin"))
        print("berlin is watched again, as another task:", after.id != before.id)

        try:
            supervisor.add_all([shop("madrid"), shop("lisbon")])
        except TaskAlreadyExists:
            print("refused: lisbon is watched already")
        show()


if __name__ == "__main__":
    main()
