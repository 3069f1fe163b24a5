"""A worker that runs until it is asked to stop.

Its body is an ordinary loop. `ctx.wait` is both its pause and its ear: it returns True as soon as
the task is asked to stop. So the worker ends between two orders, never in the middle of one, and
without waiting for its pause to be over.

Run it: python examples/worker.py

Prints::

    shipped order 17
    shipped order 18
    shipped order 19
    the shop closes
    shipping ended: canceled
"""

from queue import Queue

from supervisor import Supervisor, TaskContext, TaskSpec

orders: Queue[int] = Queue()


def ship_orders(ctx: TaskContext) -> None:
    while not ctx.wait(0.01):
        while not orders.empty() and not ctx.canceled:
            print("shipped order", orders.get())
            orders.task_done()


def main() -> None:
    with Supervisor() as supervisor:  # leaving the block asks every task to stop, and waits for it
        worker = supervisor.add(TaskSpec.restartable("shipping", ship_orders))
        for number in (17, 18, 19):
            orders.put(number)
        orders.join()
        print("the shop closes")
    print("shipping ended:", worker.wait().kind)


if __name__ == "__main__":
    main()
