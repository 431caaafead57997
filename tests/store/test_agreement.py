"""The file store that services on one database agree on."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nemo_jobs.config import load_settings
from nemo_jobs.domain.model import Unavailable
from nemo_jobs.file_store import open_file_store
from nemo_jobs.files.objects import ObjectsUnavailable, new_key
from tests.store.kit import Store


async def one_piece() -> AsyncIterator[bytes]:
    yield b"bytes"


async def test_directories_that_nobody_chose_agree_with_the_first_file(store: Store, tmp_path: Path) -> None:
    settings = load_settings(None, {}).settings
    first = await open_file_store(settings, tmp_path / "one", store.db)
    second = await open_file_store(settings, tmp_path / "two", store.db)
    key = new_key()
    assert (await first.put(key, one_piece())).size == 5
    assert b"".join([piece async for piece in first.read(key)]) == b"bytes"
    for use in (second.put(new_key(), one_piece()), anext(aiter(second.read(key))), second.remove(key)):
        with pytest.raises(ObjectsUnavailable, match="is not the file store that this database belongs to"):
            await use
    with pytest.raises(Unavailable, match="is not the file store"):
        await open_file_store(settings, tmp_path / "two", store.db)
    await open_file_store(settings, tmp_path / "one", store.db)


async def test_a_store_that_was_chosen_counts_from_the_start(store: Store, tmp_path: Path) -> None:
    for name, fits in (("one", True), ("two", False)):
        chosen = {"NHX_FILES_STORAGE__URL": f"file://{tmp_path / name}"}
        settings = load_settings(None, chosen).settings
        if fits:
            await open_file_store(settings, tmp_path, store.db)
        else:
            with pytest.raises(Unavailable, match="is not the file store"):
                await open_file_store(settings, tmp_path, store.db)
