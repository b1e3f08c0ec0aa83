"""Immutable objects in a bucket of any store that speaks S3."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

CONNECT_S, ANSWER_S = 2.0, 10.0
ATTEMPTS = 4  # with growing, random pauses
READ_ANSWER_S, READ_ATTEMPTS = 5.0, 2  # somebody waits for it
AWAY_S = 5.0  # after a read that failed, others fail at once for so long instead of piling up
CONNECTIONS = 32
DELETED_AT_ONCE = 1000  # more the protocol does not take
REMEMBERED_BYTES = 32 << 20
_NOT_THERE = ("404", "NoSuchKey", "NotFound", "InvalidRange")
T = TypeVar("T")


class ObjectStoreAway(OSError):
    """The store did not do what it was asked; later it may."""


class ObjectMissing(FileNotFoundError):
    """The store answers, and does not have the object or the part of it."""


def client(
    *,
    endpoint_url: str | None,
    region: str | None,
    access_key_id: str | None,
    secret_access_key: str | None,
    answer_s: float = ANSWER_S,
    attempts: int = ATTEMPTS,
) -> Any:
    """A client that gives up after ``attempts`` of at most ``answer_s``.

    Keys that are None come from where AWS tools find theirs.
    """
    config = Config(
        connect_timeout=CONNECT_S,
        read_timeout=answer_s,
        retries={"max_attempts": attempts, "mode": "standard"},
        max_pool_connections=CONNECTIONS,
        signature_version="s3v4",
        s3={"addressing_style": "auto" if endpoint_url is None else "path"},
        # Many stores do not know the newer checksums; what is written is checked by its MD5 instead.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    session = boto3.session.Session(
        aws_access_key_id=access_key_id,
        aws_secret_access_key=secret_access_key,
        region_name=region or ("us-east-1" if endpoint_url is not None else None),
    )
    return session.client("s3", endpoint_url=endpoint_url, config=config)


class S3Objects:
    """Objects below ``prefix``. Any method raises OSError (ObjectStoreAway, ObjectMissing).

    Parts that were read are remembered up to ``remembered_bytes``, since objects never change.
    """

    def __init__(
        self,
        client: Any,
        *,
        bucket: str,
        prefix: str,
        reading: Any = None,
        remembered_bytes: int = REMEMBERED_BYTES,
    ) -> None:
        """reading: another client for reads, one that gives up sooner."""
        self._client = client
        self._reading = reading or client
        self._away_until = 0.0
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._most_bytes = remembered_bytes
        self._guard = threading.Lock()
        self._parts: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()
        self._bytes = 0

    def read(self, key: str, start: int, length: int) -> bytes:
        """``length`` bytes of the object from ``start``."""
        if length == 0:
            return b""
        part = (key, start, length)
        with self._guard:
            if part in self._parts:
                self._parts.move_to_end(part)
                return self._parts[part]
        wanted = f"bytes={start}-{start + length - 1}"

        def get() -> bytes:
            answer = self._reading.get_object(Bucket=self._bucket, Key=self._prefix + key, Range=wanted)
            with answer["Body"] as body:
                return bytes(body.read(length + 1))

        if time.monotonic() < self._away_until:
            raise ObjectStoreAway(f"reading {key}: the object store did not answer a moment ago")
        try:
            data = self._ask(f"reading {key}", get)
        except ObjectStoreAway:
            self._away_until = time.monotonic() + AWAY_S
            raise
        if len(data) != length:
            raise ObjectMissing(f"the object store gave {len(data)} bytes of {key} instead of {length}")
        self._remember(part, data)
        return data

    def write(self, key: str, data: bytes) -> None:
        """Stores the object; one of the same key is replaced."""
        digest = hashlib.md5(data, usedforsecurity=False)

        def put() -> Any:
            return self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=data)

        tag = str(self._ask(f"writing {key}", put).get("ETag", "")).strip('"').lower()
        if len(tag) == 32 and tag.isalnum() and "-" not in tag and tag != digest.hexdigest():
            raise ObjectStoreAway(f"the object store holds other bytes of {key} than were sent")

    def delete(self, keys: Sequence[str]) -> None:
        """Removes the objects; those that are not there do not count as a fault."""
        for start in range(0, len(keys), DELETED_AT_ONCE):
            some = keys[start : start + DELETED_AT_ONCE]
            wanted = {"Objects": [{"Key": self._prefix + key} for key in some], "Quiet": True}

            def delete(wanted: dict[str, Any] = wanted) -> Any:
                return self._client.delete_objects(Bucket=self._bucket, Delete=wanted)

            errors = self._ask(f"deleting {len(some)} objects", delete).get("Errors", [])
            left = [error for error in errors if error.get("Code") not in _NOT_THERE]
            if left:
                raise ObjectStoreAway(f"{len(left)} objects could not be deleted: {left[0].get('Message')}")

    def listed(self) -> Iterator[tuple[str, float]]:
        """(key, when it was written) of every object."""
        more: dict[str, str] = {}
        while True:
            page = self._ask(
                "listing objects",
                lambda more=more: self._client.list_objects_v2(  # type: ignore[misc]
                    Bucket=self._bucket, Prefix=self._prefix, **more
                ),
            )
            for item in page.get("Contents", []):
                yield str(item["Key"]).removeprefix(self._prefix), item["LastModified"].timestamp()
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def _ask(self, what: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            kind = ObjectMissing if code in _NOT_THERE else ObjectStoreAway
            raise kind(f"{what}: the object store answers {code}") from error
        except (BotoCoreError, OSError) as error:
            raise ObjectStoreAway(
                f"{what}: the object store does not answer ({type(error).__name__})"
            ) from error

    def _remember(self, part: tuple[str, int, int], data: bytes) -> None:
        with self._guard:
            if part in self._parts or len(data) > self._most_bytes:
                return
            self._parts[part] = data
            self._bytes += len(data)
            while self._bytes > self._most_bytes:
                _part, old = self._parts.popitem(last=False)
                self._bytes -= len(old)
