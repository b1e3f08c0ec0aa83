"""Diagnosis of low-precision training runs: signals, detectors, rules, verdicts and log readers.

Start at ``engine.Engine`` (streaming) or ``cli.main`` (``floatscope diagnose``). Nothing here does I/O except
``readers`` and ``cli``.
"""
