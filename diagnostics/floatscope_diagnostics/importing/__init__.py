"""Sends any training log to a floatscope server as a run with all its steps."""
