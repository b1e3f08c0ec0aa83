"""Detectors: streaming, on whole arrays over tensors. Each emits episodes into the log of its rank."""
