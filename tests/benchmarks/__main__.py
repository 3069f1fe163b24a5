"""`python -m tests.benchmarks`."""

from __future__ import annotations

from tests.benchmarks.run import main

main()
