"""Layer 1: keep a task running."""
