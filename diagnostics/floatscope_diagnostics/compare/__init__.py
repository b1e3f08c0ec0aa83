"""``floatscope compare``: two runs, how far apart, since when, where, and how sure."""
