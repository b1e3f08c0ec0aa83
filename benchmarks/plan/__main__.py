"""The plan's predictions against every usable published run: errors of each, and of all that set nothing.

Run: python -m benchmarks.plan   (the same as floatscope plan --check)
"""

from __future__ import annotations

import sys

from floatscope_diagnostics.plan.cli import main

if __name__ == "__main__":
    sys.exit(main(["--check", *sys.argv[1:]]))
