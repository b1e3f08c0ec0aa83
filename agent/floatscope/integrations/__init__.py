"""Callbacks for training frameworks, one module each; importing one imports its framework.

``import floatscope`` imports of these only ``transformer_engine``, which needs no framework until it is used.
"""
