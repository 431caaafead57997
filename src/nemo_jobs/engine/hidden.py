"""The secrets of one run, on the follower's side: given to the work, hidden in what comes back."""

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import replace

from nemo_jobs.backends import api
from nemo_jobs.backends.api import Backend, Handle, Plan, Wipes
from nemo_jobs.domain.model import Json, Reason, StepRecord, Unavailable
from nemo_jobs.domain.secrets import Sealed, references
from nemo_jobs.store.steps import Outcome, TaskChange
from nemo_jobs.vault.cipher import Unreadable
from nemo_jobs.vault.keyring import WrongKey
from nemo_jobs.vault.masking import MaskedStream, Masks
from nemo_jobs.vault.secrets import SecretMissing, Secrets

log = logging.getLogger(__name__)

#: How long a start waits for the values of its secrets, in seconds; then it is tried again.
RESOLVE_SECONDS = 10.0
#: What all values of a step may take together: a program starts with hardly more.
MOST_BYTES = 1 << 20
#: Work (bytes times forms to look for) above which masking leaves the event loop.
_HEAVY = 1 << 20


class SecretsAway(api.Unavailable):
    """Secrets can't be read now; the start is tried again."""


def why_away(step: StepRecord, error: api.Unavailable) -> tuple[Reason, str]:
    """What a step tells while it waits for its backend, or for its secrets."""
    if isinstance(error, SecretsAway):
        return Reason.SECRETS_UNAVAILABLE, str(error)
    return Reason.BACKEND_UNAVAILABLE, f"{step.provider}/{step.profile} can't be asked now: {error}"


class Cloak:
    """Hides the values of one run in its output. With `withheld` no output may be shown at all:
    the text says why."""

    def __init__(self, secrets: Secrets | None, run: str, masks: Masks, withheld: str = "") -> None:
        self._secrets, self._where = secrets, ("output", run)
        self.masks = masks
        self.withheld = withheld

    def stream(self) -> MaskedStream:
        return MaskedStream(self.masks)

    async def feed(self, stream: MaskedStream, data: bytes) -> bytes:
        """What of the stream can be shown now."""
        if (len(data) + len(stream.held)) * self.masks.count > _HEAVY:
            return await asyncio.to_thread(stream.feed, data)
        return stream.feed(data)

    def close(self, state: Json) -> Json:
        """What is not masked yet, such as an unfinished line, as it may be stored."""
        if self._secrets is None:
            return {}
        return self._secrets.sealer.close(json.dumps(state), self._where)._asdict()

    def open(self, closed: Json) -> Json:
        """What `close` made, also before a restart; empty when it can't be opened any more."""
        if self._secrets is None or not closed:
            return {}
        try:
            state: Json = json.loads(self._secrets.sealer.open(Sealed(**closed), self._where))
        except Unreadable as error:
            log.error("an unfinished line of output is lost: %s", error)
            return {}
        return state


class Hidden:
    """What a follower does about the secrets of its step; nothing for a step without."""

    def __init__(self, secrets: Secrets | None, step: StepRecord) -> None:
        self._secrets, self._step_id = secrets, step.id
        self._wanted = references(step.spec, step.workspace)
        #: Whether it is known how to show the output; at once for a step without secrets.
        self.known = not self._wanted
        self.cloak: Cloak | None = None

    async def given(self, plan: Plan) -> Plan:
        """The plan with the values of its secrets. Raises api.Rejected when there is none, and
        SecretsAway."""
        if not self._wanted:
            return plan
        if self._secrets is None:
            raise api.Rejected("this service keeps no secrets", Reason.SECRET_MISSING)
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                values = await self._secrets.resolve(plan.key, self._step_id, self._wanted)
        except SecretMissing as error:
            raise api.Rejected(str(error), Reason.SECRET_MISSING) from error
        except Unavailable as error:
            raise SecretsAway(f"secrets can't be read now: {error}", error.retry_after) from error
        except TimeoutError as error:
            raise SecretsAway(f"secrets could not be read within {RESOLVE_SECONDS:g} s") from error
        size = sum(len(value.encode()) for value in values.values())
        if size > MOST_BYTES:
            raise api.Rejected(
                f"the values of its secrets have {size} bytes together; a step takes at most {MOST_BYTES}"
            )
        await self._hide(plan.key, values)
        return replace(plan, secret_env=values)

    async def look(self, run: str, *, ended: bool) -> None:
        """Learn what to hide in the output of a run that was started before. It waits with the
        output, which the backend keeps, for a key that is not here, but not beyond the end."""
        if self.known:
            return
        try:
            values = await self._secrets.values_of(run) if self._secrets else None
        except WrongKey as error:
            if not ended:
                log.warning("the output of %s waits: %s", run, error)
                return
            self._withhold(run, str(error))
        except SecretMissing as error:
            self._withhold(run, str(error))
        except Unavailable as error:
            raise SecretsAway(f"secrets can't be read now: {error}", error.retry_after) from error
        else:
            if values is None:
                self._withhold(run, "it is not known what the run was given")
            else:
                await self._hide(run, values)

    def outcome(self, outcome: Outcome) -> Outcome:
        """An outcome whose texts may hold output, without values."""
        if self.cloak is None:
            return outcome
        hide = self.cloak.masks.hide_text
        return replace(
            outcome,
            message=hide(outcome.message),
            error_details=_hidden(outcome.error_details, self.cloak.masks),
            tasks=tuple(self._task(task) for task in outcome.tasks),
        )

    async def end(self, backend: Backend, handle: Handle | None) -> None:
        """The run has ended and its output is stored: what it was given is needed no more, and
        what it wrote, in which values may stand, is nowhere else."""
        if not self._wanted or self._secrets is None:
            return
        try:
            await self._secrets.forget(self._step_id)
        except Unavailable as error:
            log.warning("what a run was given is dropped with the next start: %s", error)
        if handle is not None and isinstance(backend, Wipes):
            try:
                await backend.wipe_output(handle)
            except (api.Unavailable, OSError) as error:
                log.warning("the output files of %s stay until they are removed: %s", handle.key, error)

    def _task(self, task: TaskChange) -> TaskChange:
        cloak = self.cloak
        if cloak is None:
            return task
        stack = task.error_stack
        if stack is not None:
            stack = f"(withheld: {cloak.withheld})" if cloak.withheld else cloak.masks.hide_text(stack)
        return replace(task, error_stack=stack, error_details=_hidden(task.error_details, cloak.masks))

    async def _hide(self, run: str, values: Mapping[str, str]) -> None:
        masks = await asyncio.to_thread(Masks, values.values())
        self.cloak, self.known = Cloak(self._secrets, run, masks), True

    def _withhold(self, run: str, why: str) -> None:
        log.error("the output of %s is withheld, since its secrets can't be hidden in it: %s", run, why)
        self.cloak, self.known = Cloak(self._secrets, run, Masks(()), why), True


def _hidden(details: Json | None, masks: Masks) -> Json | None:
    if details is None:
        return None
    return {
        name: masks.hide_text(value) if isinstance(value, str) else value for name, value in details.items()
    }
