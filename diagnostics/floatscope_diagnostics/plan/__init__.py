"""Before a run: memory, step time and cost in BF16 and each FP8 recipe, with errors against publications."""
