"""Faults to inject into a run, each exact: it does what its description says and touches nothing else."""
