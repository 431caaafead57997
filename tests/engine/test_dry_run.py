"""What would be sent, as the engine tells it, and what is swept seldom."""

import asyncio
from pathlib import Path

import pytest

from nemo_jobs.backends.subprocess import SubprocessBackend
from nemo_jobs.domain.model import Invalid
from nemo_jobs.engine import sweep
from nemo_jobs.store import idempotency, jobs
from nemo_jobs.store.idempotency import KEPT, Once
from tests.engine.bench import Bench, open_place


async def test_what_would_be_sent_is_what_the_backend_renders(tmp_path: Path) -> None:
    bench = Bench(await open_place(f"{tmp_path}/nemo-jobs.db"))
    engine = await bench.start()
    new = bench.new_job("moth", {"A": "1"}, {"B": "2"})
    first, second = jobs.steps_of(new, bench.place.clock.now())
    assert (first.ordinal, second.ordinal, first.attempt_id) == (0, 1, second.attempt_id)
    manifests = [engine.render(step) for step in (first, second)]
    assert manifests[0] != manifests[1]
    assert bench.place.world.starts == {}
    with pytest.raises(Invalid, match="no backend here runs profile subprocess/nowhere"):
        engine.render(first._replace(profile="nowhere"))
    await bench.close()


async def test_a_host_says_what_it_would_start_and_what_it_lacks(tmp_path: Path) -> None:
    bench = Bench(await open_place(f"{tmp_path}/nemo-jobs.db"))
    engine = await bench.start()
    backend = SubprocessBackend(tmp_path, host_id="h1", clock=bench.place.clock, inherited={"PATH": "/bin"})
    engine._reach._backends = {"subprocess": backend}
    (step,) = jobs.steps_of(bench.new_job("moth", {"A": "1"}), bench.place.clock.now())
    executor = {"provider": "subprocess", "profile": "default", "command": ["sh", "-c", "true"]}
    manifest = engine.render(step._replace(spec={**step.spec, "executor": executor}))
    assert manifest["argv"] == ["sh", "-c", "true"]
    assert manifest["env"]["A"] == "1"
    missing = {**executor, "command": ["no-such-program"]}
    with pytest.raises(Invalid, match="'no-such-program' was not found"):
        engine.render(step._replace(spec={**step.spec, "executor": missing}))
    await bench.close()


async def test_old_keys_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "SELDOM", 1)
    monkeypatch.setattr(sweep, "EVERY_SECONDS", 0.01)
    bench = Bench(await open_place(f"{tmp_path}/nemo-jobs.db"))
    once = Once("default", "ada", "key", "digest")
    new, now = bench.new_job("moth", {}), bench.place.clock.now()
    await bench.db.write(idempotency.create_once, new, once, lambda job: job.id, None, now, "ada")
    await bench.start()
    await bench.until("moth", "completed")
    assert await bench.db.read(idempotency.first_answer, once, now) is not None
    bench.place.clock.advance(KEPT / 1e6 + 1)
    async with asyncio.timeout(10):
        while await bench.db.read(idempotency.first_answer, once, now) is not None:
            await asyncio.sleep(0.02)
    await bench.close()
