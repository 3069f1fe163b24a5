"""Where the runs stand in line that a worker should drive: one protocol, three queues."""

from __future__ import annotations
