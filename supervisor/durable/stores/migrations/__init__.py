"""What the databases were made with, step by step: forward only, each step once, none ever edited."""

from __future__ import annotations
