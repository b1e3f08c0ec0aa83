"""Kinds of stored numbers: the ``kind`` of blocks, tiles, levels and series."""

ROWS, SCALARS, STAT, HISTOGRAM, DERIVED = 0, 1, 2, 3, 4
"""ROWS: steps and times. ``series`` uses SCALARS and STAT. DERIVED: only levels, of what is computed from
stored statistics (``floatscope_server.derived``).
"""

TILE_SERIES = 32  # tensors of a tile
LEVEL_SERIES = 128  # tensors of a row of levels
