"""What a create would do: the job with all defaults, and for each step what would be sent where."""

import asyncio
from collections.abc import Iterator

from nemo_jobs.domain.model import Invalid, Json, StepRecord
from nemo_jobs.http.parts import Api
from nemo_jobs.http.wire import Reply, dumps
from nemo_jobs.store import jobs as store

#: What all manifests of an answer may take together, in characters.
MANIFESTS = 16 * 1024 * 1024
NO_ENGINE = "this service runs no engine and can't say what would be sent; ask one that does"
TOO_LARGE = "left out, since the answer would be too large"


async def dry_run(api: Api, new: store.NewJob) -> Reply:
    """Check what only the store can check, and tell. Stores nothing and starts nothing."""
    now = api.parts.clock.now()
    await api.parts.db.read(store.check_new, new)
    # A spec may have thousands of steps, and rendering looks for programs.
    shown = await asyncio.to_thread(lambda: ",".join(_steps(api, store.steps_of(new, now))))
    return Reply(f'{_job(new)[:-1]},"dry_run":true,"steps":[{shown}]}}'.encode())


def _job(new: store.NewJob) -> str:
    plain = {
        "name": new.name,
        "workspace": new.workspace,
        "project": new.project,
        "description": new.description,
        "source": new.source,
        "platform_spec": new.platform_spec,
        "fileset": new.fileset,
        "output_location": new.output_location,
    }
    texts = {"spec": new.spec, "ownership": new.ownership, "custom_fields": new.custom_fields}
    copied = "".join(f',"{name}":{value or "null"}' for name, value in texts.items())
    return f"{dumps(plain)[:-1]}{copied}}}"


def _steps(api: Api, steps: list[StepRecord]) -> Iterator[str]:
    left = MANIFESTS
    for step in steps:
        manifest, problem = _manifest(api, step) if left > 0 else (None, TOO_LARGE)
        profile = api.parts.profiles.get(step.provider, step.profile)
        shown = dumps(
            {
                "name": step.name,
                "provider": step.provider,
                "profile": step.profile,
                "backend": profile.backend if profile else None,
                "manifest": manifest,
                "problem": problem,
            }
        )
        left -= len(shown)
        yield shown


def _manifest(api: Api, step: StepRecord) -> tuple[Json | None, str | None]:
    """What would be sent for the step, or why the backend would not take it."""
    engine = api.parts.engine
    if engine is None:
        return None, NO_ENGINE
    try:
        return engine.render(step), None
    except Invalid as error:
        return None, str(error)
