"""From the setting to the store."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from nemo_jobs.files.local import LocalObjects
from nemo_jobs.files.objects import ObjectStore, ObjectsUnavailable

if TYPE_CHECKING:
    from nemo_jobs.config import Settings

#: A store that is away is told of soon; whoever asked may ask again.
_RETRIES: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=15)}
#: Options that are the connection's and not the bucket's.
CLIENT_OPTIONS = ("allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "timeout")


def open_objects(settings: "Settings", data_dir: Path) -> ObjectStore:
    """The store of `files.storage.url`; without one, the directory `files` of the data directory.

    Raises ObjectsUnavailable when it can't be: a directory that can't be made, an extra that is
    not installed, options that the store does not know. Nothing is sent over the network.
    """
    storage = settings.files.storage
    parts = urlsplit(storage.url or "")
    if parts.scheme in ("", "file"):
        local = LocalObjects(Path(unquote(parts.path)) if parts.scheme else data_dir / "files")
        local.prepare()
        return local
    return _bucket(storage.url or "", storage.options)


def _bucket(url: str, options: dict[str, str]) -> ObjectStore:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError as error:
        hint = "pip install 'nemo-jobs[s3]'"
        raise ObjectsUnavailable(f"files.storage.url {url} needs obstore ({error}); {hint}") from error
    from nemo_jobs.files.bucket import BucketObjects

    client: Any = {key: value for key, value in options.items() if key in CLIENT_OPTIONS}
    if options.get("endpoint", options.get("aws_endpoint", "")).startswith("http://"):
        client["allow_http"] = True
    config: Any = {key: value for key, value in options.items() if key not in CLIENT_OPTIONS}
    try:
        store = from_url(url, config=config or None, client_options=client or None, retry_config=_RETRIES)
    except (BaseError, ValueError, TypeError) as error:
        said = str(error).partition("\n")[0]
        raise ObjectsUnavailable(f"files.storage.url {url} can't be used: {said}") from error
    return BucketObjects(store, url)
