"""Whether this machine and this model can train in FP8: what was read, why it matters, what to do."""
