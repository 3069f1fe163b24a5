"""Tools for testing supervised work: virtual time, an event recorder, a check for leaked threads."""

from __future__ import annotations

from supervisor.testing.recorder import EventRecorder
from supervisor.testing.threads import no_leaked_threads
from supervisor.testing.virtual_clock import BlockedOutsideClock, VirtualClock, VirtualDeadlock

__all__ = ["BlockedOutsideClock", "EventRecorder", "VirtualClock", "VirtualDeadlock", "no_leaked_threads"]
