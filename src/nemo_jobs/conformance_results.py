# ruff: noqa: S101 - tests
"""What every backend must do whose work can leave results, as tests."""

from nemo_jobs.backends.api import ENDED, Collects, LeftChanged
from nemo_jobs.conformance_harness import Harness, Waiting, Work


class ResultConformance(Waiting):
    """What work leaves is found whole, read as it is, and gone with the work."""

    async def test_what_work_left_is_found_whole_and_read(self, harness: Harness) -> None:
        backend = await harness.backend()
        if not isinstance(backend, Collects):
            return
        texts = {"model": "m" * 10, "parts/a": "a", "parts/deep/b": "bb"}
        handle = await backend.submit(harness.plan(Work(left=texts)))
        await self.settle(harness, backend, handle, ENDED)
        left = await backend.left(handle, 1 << 20)
        assert left is not None
        assert [(item.name, item.folder) for item in left.items] == [("model", False), ("parts", True)]
        found = {}
        for item in left.items:
            for file in item.files:
                data = b"".join([piece async for piece in backend.read_left(handle, file)])
                assert len(data) == file.size
                found[f"{item.name}/{file.path}".rstrip("/")] = data.decode()
        assert found == texts
        small = await backend.left(handle, 5)
        assert small is not None
        assert [item.name for item in small.items] == ["parts"]
        assert len(small.notes) == 1
        gone = left.items[0].files[0]
        await backend.remove(handle)
        assert await backend.left(handle, 1 << 20) is None
        try:
            _ = [piece async for piece in backend.read_left(handle, gone)]
        except LeftChanged:
            return
        raise AssertionError("a file that is gone was read")

    async def test_work_that_leaves_nothing_is_told(self, harness: Harness) -> None:
        backend = await harness.backend()
        if not isinstance(backend, Collects):
            return
        handle = await backend.submit(harness.plan(Work()))
        await self.settle(harness, backend, handle, ENDED)
        assert await backend.left(handle, 1 << 20) is None
