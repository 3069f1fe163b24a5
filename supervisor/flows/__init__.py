"""Layer 2: walk a state machine, on a schedule."""
