"""What every layer stands on: time, cancellation, attempts, retries, events.

The kernel knows no task, no flow and no durable run.
"""
