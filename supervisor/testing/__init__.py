"""Tools for testing supervised work: virtual time and a check for leaked threads."""

from __future__ import annotations

from supervisor.testing.threads import no_leaked_threads
from supervisor.testing.virtual_clock import BlockedOutsideClock, VirtualClock, VirtualDeadlock

__all__ = ["BlockedOutsideClock", "VirtualClock", "VirtualDeadlock", "no_leaked_threads"]
