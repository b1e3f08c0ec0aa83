"""What is true of FP8: popular claims, each held against a measurement on the machine at hand."""
