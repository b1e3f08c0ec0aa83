"""The wire protocol: the one part of the agent that the rest of floatscope may import.

Modules: ``names`` (words and limits), ``formats`` (number formats), ``batch`` (steps as columns), ``runinfo``
(what is known about a run), ``strict_json`` (JSON that keeps NaN, Inf and missing apart), ``json_rows`` (the
floatscope log's objects), ``wire_json`` and ``wire_safetensors`` (the two bodies a batch travels in),
``errors``.
"""
