"""`python -m supervisor`, and the console script `threadvisor`."""

from __future__ import annotations

__all__ = ["main"]


def main() -> int:
    """Run the command line; return its exit code."""
    from supervisor.cli.main import main

    return main()


if __name__ == "__main__":
    raise SystemExit(main())
