"""Callbacks for training frameworks, one module each; importing one imports its framework.

Nothing here is imported by ``import floatscope``.
"""
