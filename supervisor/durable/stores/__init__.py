"""Where histories are kept: one protocol, four stores."""

from __future__ import annotations
