"""Signatures of generic webhooks, by which a receiver knows that a message is ours, whole and fresh."""

from __future__ import annotations

import hashlib
import hmac
import secrets

TIMESTAMP = "X-Floatscope-Timestamp"
SIGNATURE = "X-Floatscope-Signature"
DELIVERY = "X-Floatscope-Delivery"
MIN_SECRET_CHARS, MAX_SECRET_CHARS = 16, 256


def new_secret() -> str:
    """A secret that nobody has seen yet, of 256 random bits."""
    return "fsk_" + secrets.token_urlsafe(32)


def signed(payload: bytes, *, key: bytes, timestamp: int, delivery: str) -> dict[str, str]:
    """The headers of a signed post. timestamp: Unix seconds.  delivery: the same when it is sent again."""
    text = str(timestamp).encode() + b"." + payload
    digest = hmac.new(key, text, hashlib.sha256).hexdigest()
    return {TIMESTAMP: str(timestamp), SIGNATURE: f"v1={digest}", DELIVERY: delivery}
