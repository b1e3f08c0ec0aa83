"""A rewriting process that is killed between two writes to the object store, for tests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from floatscope_server.database import Database
from floatscope_server.objects.opening import open_objects
from floatscope_server.objects.s3 import S3Objects
from floatscope_server.rewriting import Rewriter
from floatscope_server.settings import Settings
from floatscope_server.store.tensor_tables import TensorTables


class Dying:
    """The store, until it has written ``after`` objects; then the process is killed as by kill -9."""

    def __init__(self, real: S3Objects, after: int) -> None:
        self._real, self._left = real, after

    def read(self, key: str, start: int, length: int) -> bytes:
        return self._real.read(key, start, length)

    def write(self, key: str, data: bytes) -> None:
        self._real.write(key, data)
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def delete(self, keys: Sequence[str]) -> None:
        self._real.delete(keys)


def main() -> None:
    """Arguments: run and number of objects; the rest is in the settings."""
    run, after = int(sys.argv[1]), int(sys.argv[2])
    settings = Settings()
    objects = open_objects(settings)
    assert objects is not None
    database = Database(settings.database)
    rewriter = Rewriter(
        database=database, tensor_tables=TensorTables(), worker="dying", objects=Dying(objects, after)
    )
    rewriter.rewrite(run, 0, whole=True)


if __name__ == "__main__":
    main()
