"""Tools for testing supervised work: virtual time, an event recorder, faults, a check for leaked threads."""

from __future__ import annotations

from supervisor.testing.faults import FaultyStore, InjectedFault
from supervisor.testing.recorder import EventRecorder
from supervisor.testing.threads import no_leaked_threads
from supervisor.testing.virtual_clock import BlockedOutsideClock, VirtualClock, VirtualDeadlock

__all__ = [
    "BlockedOutsideClock",
    "EventRecorder",
    "FaultyStore",
    "InjectedFault",
    "VirtualClock",
    "VirtualDeadlock",
    "no_leaked_threads",
]
