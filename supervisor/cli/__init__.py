"""The command line: `run` for a program's own tasks and flows, `cron` and `graph` to look, `demo` for a first look."""
