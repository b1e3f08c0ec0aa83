"""Templates as code. Each is compiled once for the whole process, whatever the language: what it says is
looked up when it is rendered. Like imported modules, the code is kept as long as the process lives.
"""

from __future__ import annotations

from types import CodeType

from jinja2 import BytecodeCache
from jinja2.bccache import Bucket


class CompiledTemplates(BytecodeCache):
    """Code by the name of a template and a checksum of its text."""

    def __init__(self) -> None:
        self._code: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        """Gives the bucket its code, if there is any."""
        bucket.code = self._code.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keeps the code of the bucket."""
        if bucket.code is not None:
            self._code[bucket.key, bucket.checksum] = bucket.code


COMPILED = CompiledTemplates()
