"""Opens the object store that the settings name."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from floatscope_server.settings import Settings, SettingsError

if TYPE_CHECKING:
    from floatscope_server.objects.s3 import S3Objects


def open_objects(settings: Settings) -> S3Objects | None:
    """The store of ``tiles_url``, or None if tiles stay in the database. It is not asked anything yet.

    Raises SettingsError.
    """
    if settings.tiles_url is None:
        return None
    parts = urlsplit(settings.tiles_url)
    if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
        raise SettingsError(
            "setting tiles_url (FLOATSCOPE_TILES_URL): expected s3://bucket or s3://bucket/prefix; keys are "
            "given by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    try:
        from floatscope_server.objects import s3  # noqa: PLC0415 - an extra of its own
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"setting tiles_url needs the package {error.name!r}, which is not installed here: "
            "pip install 'floatscope[s3]'"
        ) from error
    secret = settings.tiles_secret_access_key
    made = partial(
        s3.client,
        endpoint_url=settings.tiles_endpoint_url,
        region=settings.tiles_region,
        access_key_id=settings.tiles_access_key_id,
        secret_access_key=None if secret is None else secret.get_secret_value(),
    )
    reading = made(answer_s=s3.READ_ANSWER_S, attempts=s3.READ_ATTEMPTS)
    return s3.S3Objects(made(), bucket=parts.netloc, prefix=parts.path.strip("/"), reading=reading)
