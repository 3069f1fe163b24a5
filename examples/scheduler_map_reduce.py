"""Map-reduce on two levels: words counted in a directory of texts.

Level 1 is inside a workflow: a split counts the words of each file of one folder in parallel (map), and the
state after its join adds them up (reduce). Level 2 is the scheduler: one such flow for each folder, all
triggered together (map), and a shared resource that collects their summaries for the last step (reduce).

Run it: python examples/scheduler_map_reduce.py

Prints::

    harbor: 3 files, 31 words
    market: 2 files, 27 words
    58 words in all
    the 9, bread 5, ships 4
"""

import re
from collections import Counter
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory

from supervisor import Event
from supervisor.flows import (
    FlowRun,
    FlowSucceeded,
    JoinConfig,
    JoinStrategy,
    MemoryStore,
    Resources,
    Scheduler,
    Workflow,
)

TEXTS = {
    "harbor/morning.txt": "The ships come in with the tide. The gulls know the ships.",
    "harbor/noon.txt": "Bread and fish, bread and tea. The crane sleeps.",
    "harbor/night.txt": "Two ships leave, and the lamps follow the ships out.",
    "market/bakers.txt": "Warm bread, dark bread. Who buys the bread before the bell?",
    "market/rumors.txt": "They say a storm is near. They say that every year, and every year it comes.",
}


class Step(Enum):
    COUNT = auto()
    SUMMARIZE = auto()
    DONE = auto()


def count_words(path: Path) -> Callable[[], Counter[str]]:
    return lambda: Counter(re.findall(r"[a-z]+", path.read_text("utf-8").lower()))


def workflow_for(folder: Path, totals: MemoryStore) -> Workflow:
    """Level 1: map over the files of a folder, reduce to its summary."""

    def summarize(res: Resources, run: FlowRun) -> Step:
        counted = run.splits[Step.COUNT].values
        res["totals"].put(folder.name, (len(counted), sum(counted, Counter[str]())))
        return Step.DONE

    return (
        Workflow(Resources(totals=totals))
        .register_split(
            Step.COUNT,
            [count_words(path) for path in sorted(folder.glob("*.txt"))],
            JoinConfig(JoinStrategy.ALL, Step.SUMMARIZE, timeout=60, bulkhead=4),
        )
        .register(Step.SUMMARIZE, summarize)
        .add_exit_state(Step.DONE)
    )


def count_all(folders: list[Path]) -> MemoryStore:
    """Level 2: a flow for each folder, all at once."""
    totals, ended = MemoryStore(), Queue[str]()

    def note_the_end(event: Event) -> None:
        if isinstance(event, FlowSucceeded):
            ended.put(event.flow_id)

    scheduler = Scheduler(subscribers=[note_the_end])
    for folder in folders:
        scheduler.manual(folder.name, workflow_for(folder, totals), Step.COUNT)
    with scheduler.start() as running:
        for folder in folders:
            running.trigger(folder.name)
        for _ in folders:
            ended.get(timeout=60)
    return totals


def main() -> None:
    with TemporaryDirectory() as root:
        for name, text in TEXTS.items():
            path = Path(root, name)
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        totals = count_all(sorted(Path(root).iterdir()))

    everything = Counter[str]()
    for name in sorted(totals.keys()):
        files, words = totals.get(name)
        everything += words
        print(f"{name}: {files} files, {words.total()} words")
    print(everything.total(), "words in all")
    print(", ".join(f"{word} {times}" for word, times in everything.most_common(3)))


if __name__ == "__main__":
    main()
