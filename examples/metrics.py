"""Numbers for Prometheus, counted from events.

A supervisor counts nothing by itself: hand it a `PrometheusSubscriber`, and every event is counted
in a registry, which your web server or `prometheus_client.start_http_server` gives out. Here the
page is made by hand, and the counters of attempts and of ended tasks are shown.

Needs: pip install 'threadvisor[prometheus]'
Run it: python examples/metrics.py

Prints::

    supervisor_tasks_finished_total{outcome="completed",task="rates"} 1.0
    supervisor_tasks_finished_total{outcome="failed",task="invoices"} 1.0
    supervisor_attempts_total{result="failed",task="rates"} 2.0
    supervisor_attempts_total{result="succeeded",task="rates"} 1.0
    supervisor_attempts_total{result="failed",task="invoices"} 1.0
"""

from prometheus_client import CollectorRegistry, generate_latest

from supervisor import BackoffPolicy, Supervisor, TaskContext, TaskSpec
from supervisor.subscribers import PrometheusSubscriber


def load_rates(ctx: TaskContext) -> None:
    if ctx.attempt < 3:
        raise TimeoutError("the bank did not answer")


def print_invoices() -> None:
    raise OSError("the printer is out of paper")


def main() -> None:
    registry = CollectorRegistry()
    supervisor = Supervisor(subscribers=[PrometheusSubscriber(registry)])
    backoff = BackoffPolicy.constant(0.01)
    supervisor.add(TaskSpec.restartable("rates", load_rates, backoff=backoff)).wait()
    supervisor.add(TaskSpec.once("invoices", print_invoices)).wait()
    supervisor.shutdown()  # every event has been counted now

    page = generate_latest(registry).decode()
    for line in page.splitlines():
        if line.startswith(("supervisor_attempts_total", "supervisor_tasks_finished_total")):
            print(line)


if __name__ == "__main__":
    main()
