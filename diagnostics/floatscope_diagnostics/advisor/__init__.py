"""Which layers of a run should leave FP8, what that would bring and cost, as settings to paste."""
