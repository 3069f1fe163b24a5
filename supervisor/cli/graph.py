"""The command `graph`: a workflow as a Mermaid diagram."""

from __future__ import annotations

import os
import sys

from supervisor.cli.run import refused
from supervisor.cli.target import TargetError, load_workflow
from supervisor.cli.terminal import Terminal
from supervisor.cli.words import Tone

__all__ = ["graph"]


def graph(target: str) -> int:
    """Print the workflow `module:object`; return the exit code."""
    try:
        workflow = load_workflow(target)
    except TargetError as error:
        return refused(Terminal(sys.stderr, os.environ), str(error), error.traceback)
    # No color and no cut: this goes into a file.
    Terminal(sys.stdout, {}).say([(line, Tone.PLAIN)] for line in workflow.to_mermaid().splitlines())
    return 0
