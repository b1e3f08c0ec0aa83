"""A step of a run once more: as it was, with FP8 off, in bf16, and with one layer in bf16."""
