"""What is stored before the end of a run is recorded: the rest of its output, and its results."""

from nemo_jobs.backends.api import Backend, Handle, Observation
from nemo_jobs.domain import decide as rules
from nemo_jobs.domain.model import Json
from nemo_jobs.domain.profiles import Profile
from nemo_jobs.domain.states import Trigger
from nemo_jobs.engine import plans
from nemo_jobs.engine.around import LeaseLost, Surroundings
from nemo_jobs.engine.collect import Collector
from nemo_jobs.engine.gather import Gathering, Tell, collects
from nemo_jobs.store.steps import LogBatch, Outcome

#: How long nothing may come of the rest of the output after the work has ended, in seconds.
DRAIN_SECONDS = 30.0


class Finish:
    """The end of one run. What was read and stored is kept: when a request comes in between, the
    end is recorded in another turn."""

    def __init__(self, shared: Surroundings, profile: Profile, backend: Backend) -> None:
        self._shared, self._profile, self._backend = shared, profile, backend
        self._rest_of_log: LogBatch | None = None
        self._log_note: Json = {}
        self._results: Json | None = None  # what is to be told about them, once they are stored

    @property
    def gathered(self) -> bool:
        """Whether the results are stored."""
        return self._results is not None

    async def drain(self, collector: Collector) -> None:
        """Read the output to its end."""
        self._rest_of_log = await collector.drain(DRAIN_SECONDS)
        self._log_note = {"log_note": collector.failure} if collector.failure else {}

    async def gather(self, step_id: str, handle: Handle | None, grace: float, tell: Tell) -> None:
        """Make what the run left results of the job."""
        objects, most = self._shared.objects, plans.most_results(self._profile)
        if objects is None or handle is None or not collects(self._backend):
            self._results = {}
            return
        records = self._shared.records
        gathering = Gathering(self._backend, handle, objects, records, step_id, most, grace)
        if not await gathering.run(tell):
            raise LeaseLost
        self._results = gathering.details()

    def outcome(self, action: rules.Record, observation: Observation | None) -> Outcome:
        """The end as it is recorded."""
        config = self._profile.config
        good = Trigger.SUCCEEDED in action.triggers
        at_once = good and config.cleanup_completed_jobs_immediately and not self._results
        return Outcome(
            triggers=action.triggers,
            reason=action.reason,
            message=action.message,
            tasks=plans.task_changes(observation, action.error) if observation else (),
            status_details={
                **(plans.step_details(observation) if observation else {}),
                **self._log_note,
                **(self._results or {}),
            },
            error_details=action.error,
            logs=self._rest_of_log,
            removal_after=0 if at_once else config.ttl_seconds_after_finished * 1_000_000,
            kept=self._backend.capabilities.resumes,
            claim_next=False,
        )
