"""The command line: `run` for a program's own tasks, `demo` for a first look."""
