"""The bytes of a request, and what is wrong with them."""

import zlib
from enum import Enum

#: Bytes of a request after decompression, at most: a small body may say that it is a huge one.
MAX_DECODED = 16 << 20
#: JSON takes many times its size while it is read.
MAX_DECODED_JSON = 4 << 20
#: Resources, scopes and records of one request together, at most.
MAX_ENTRIES = 100_000
#: Attributes and members of lists of one request, at most.
MAX_VALUES = 1_000_000
#: Resources of one request, at most: each is looked up.
MAX_RESOURCES = 1_000
#: Bytes of one record or resource, at most.
MAX_RECORD = 2 << 20
#: Parts of a gzip body that were compressed by themselves, at most: an empty one takes 20 bytes.
MAX_MEMBERS = 1_000
_BLOCK = 64 << 10


class BadPayload(Exception):
    """The body is not what it says it is."""


class TooLarge(Exception):
    """The body is more than is taken at once; the text says how to send less."""


class Form(Enum):
    PROTOBUF = "protobuf"
    JSON = "JSON"


def decompressed(body: bytes, limit: int) -> bytes:
    """What is in a gzip body. Raises BadPayload, and TooLarge as soon as it is over `limit` bytes."""
    parts: list[bytes] = []
    left, at, members = limit, 0, 0
    unpacker = zlib.decompressobj(wbits=31)
    while at < len(body) or not members:
        # In blocks: behind the end of a member all that is left of its block is copied.
        block = body[at : at + _BLOCK]
        try:
            parts.append(unpacker.decompress(block, left + 1))
        except zlib.error as error:
            raise BadPayload(f"the body is not gzip: {error}") from None
        left -= len(parts[-1])
        check_size(limit - left, limit)
        at += len(block) - len(unpacker.unused_data)
        if unpacker.eof:
            members += 1
            unpacker = zlib.decompressobj(wbits=31)
        elif at >= len(body):
            raise BadPayload("the gzip body is cut short")
        if members == MAX_MEMBERS and at < len(body):
            raise BadPayload(f"the gzip body has more than {MAX_MEMBERS} members; compress it as a whole")
    return b"".join(parts)


def check_size(size: int, limit: int) -> None:
    if size > limit:
        raise TooLarge(f"the records are more than {limit >> 20} MiB; send smaller batches")
