"""What the library costs, beside its peers. Not tests: run `python -m tests.benchmarks [--quick]`."""
