"""Encryption of values: AES-256-GCM, each bound to the place where it is stored.

The library is large and is loaded with the first use: call these in a thread.
"""

import base64
import binascii
import os
from collections.abc import Mapping

from nemo_jobs.domain.secrets import Sealed
from nemo_jobs.vault.keys import KEY_BYTES, Key

_VERSION = "1"
_NONCE = 12


class Unreadable(Exception):
    """A value can't be decrypted: it was changed or moved, or its key is not here. Shows nothing
    of it."""


def encrypt(key: Key, text: str, where: tuple[str, ...]) -> Sealed:
    """`text` as ciphertext that opens only at `where`, with the same key."""
    return Sealed(_seal(key, text.encode(), where), key.id)


def decrypt(keys: Mapping[str, Key], sealed: Sealed, where: tuple[str, ...]) -> str:
    """The text of a ciphertext. Raises Unreadable."""
    key = keys.get(sealed.key_id)
    if key is None:
        raise Unreadable(f"it needs the key {sealed.key_id}, which this service does not have")
    return _open(key, sealed.value, where).decode()


def wrap(with_key: Key, key: Key) -> str:
    """`key` encrypted with another one."""
    return _seal(with_key, key.raw, ("key", key.id))


def unwrap(with_key: Key, text: str, key_id: str) -> Key:
    """The key of a text made by `wrap`. Raises Unreadable."""
    key = Key.of(_open(with_key, text, ("key", key_id)))
    if len(key.raw) != KEY_BYTES or key.id != key_id:
        raise Unreadable("the key that was handed over is another one")
    return key


def _seal(key: Key, data: bytes, where: tuple[str, ...]) -> str:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE)
    closed = AESGCM(key.raw).encrypt(nonce, data, _bound(key, where))
    return f"{_VERSION}.{base64.b64encode(nonce + closed).decode()}"


def _open(key: Key, text: str, where: tuple[str, ...]) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    version, _, body = text.partition(".")
    try:
        if version != _VERSION:
            raise Unreadable("it was encrypted by another version of the service")
        data = base64.b64decode(body, validate=True)
        return AESGCM(key.raw).decrypt(data[:_NONCE], data[_NONCE:], _bound(key, where))
    except (InvalidTag, binascii.Error, ValueError):
        raise Unreadable("it was changed or moved since it was encrypted") from None


def _bound(key: Key, where: tuple[str, ...]) -> bytes:
    """What is authenticated beside the value: lengths in front keep the words apart."""
    words = [word.encode() for word in ("nemo-jobs", _VERSION, key.id, *where)]
    return b"".join(len(word).to_bytes(4) + word for word in words)
