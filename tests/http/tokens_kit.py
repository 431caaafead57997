"""Services that ask for tokens, and short ways to make tokens for them."""

import contextlib

from nemo_jobs.store import tokens
from tests.http.kit import open_service

AUTH = "platform: {runtime: none}\nauth: {enabled: true}\n"


@contextlib.asynccontextmanager
async def open_guarded(folder, **given):
    """A service with authentication on, and the workspaces `lab` and `other`."""
    async with open_service(folder, config=given.pop("config", AUTH), **given) as service:
        root = await make_token(service, {"*": ["admin"]}, principal="root")
        for name in ("lab", "other"):
            answer = await service.client.post(
                "/apis/entities/v2/workspaces", json={"name": name}, headers=bearer(root)
            )
            assert answer.status_code == 201, answer.text
        yield service


async def make_token(service, grants, *, principal="ann", expires_in=None, description=None):
    """A token, stored as the command does it on the service's machine."""
    shown, now = tokens.new_token(), service.clock.now()
    await service.db.write(
        tokens.add,
        tokens.hash_of(shown),
        principal,
        grants,
        description=description,
        expires_at=None if expires_in is None else now + int(expires_in * 1e6),
        now=now,
        actor="test",
    )
    return shown


async def make_task_token(service, job):
    """The token of the task of a job's current attempt."""
    shown = tokens.new_token(tokens.TASK_PREFIX)
    await service.db.write(
        tokens.add_for_attempt,
        tokens.hash_of(shown),
        job["attempt_id"],
        f"task:{job['name']}",
        service.clock.now(),
    )
    return shown


def bearer(token, **headers):
    return {"authorization": f"Bearer {token}", **headers}
