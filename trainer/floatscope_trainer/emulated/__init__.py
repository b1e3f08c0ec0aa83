"""FP8 training emulated on any machine: real float8 casts, Transformer Engine's scale rules and shape of
state.
"""
