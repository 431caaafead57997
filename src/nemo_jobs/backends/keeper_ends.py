"""The ends of jobs: seen, written down, told; and the ends that somebody asks for.

A main process that ends by itself decides at once; what it left behind gets SIGTERM, the grace
and SIGKILL without delaying anybody. A job that is stopped has ended when its last process has.
Standard library only: the keeper runs this.
"""

import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from nemo_jobs.backends import keeper_journal as journals
from nemo_jobs.backends import keeper_process as proc
from nemo_jobs.backends.keeper_trees import Job, Trees

Json = dict[str, Any]

RECENT = 4096  # ended keys that are remembered although everything of them may be removed
_AGAIN = 0.05  # seconds between two uses of force on what does not go
_LOOK = 0.1  # seconds between two looks at processes that are not our children
_OWNERLESS_GRACE = 10.0
UNKNOWN_CODE = "The process was kept by a keeper that was killed: its exit code is not known."


class Ends:
    """The jobs in memory and how they end."""

    def __init__(self, journal: journals.Journal, tell: Callable[[str, Json], None]) -> None:
        self.journal = journal
        self.trees = Trees()
        self.selector = selectors.DefaultSelector()
        self.jobs: dict[str, Job] = {}  # all in memory: living, being ended, not confirmed
        self.mains: dict[int, Job] = {}  # by pid, our children only
        self.tasks: dict[str, Job] = {}  # by task, as long as processes may be left
        self.recent: dict[str, None] = {}
        self._closing: dict[str, Job] = {}  # a stop was asked for, or rests are being ended
        self._ownerless: dict[int, float] = {}
        self._unrecorded: dict[str, Job] = {}  # ends that a full disk did not take
        self._told = tell

    @property
    def busy(self) -> bool:
        return bool(self.tasks or self._ownerless or self._unrecorded)

    def started(self, job: Job) -> None:
        self.jobs[job.key] = self.mains[job.pid] = self.tasks[job.task] = job

    def adopt(self, job: Job) -> None:
        """Take over a process that an earlier keeper started."""
        self.jobs[job.key] = self.tasks[job.task] = job
        job.pidfd = os.pidfd_open(job.pid)
        self.selector.register(job.pidfd, selectors.EVENT_READ, lambda: self._adopted_ended(job))

    def bury(self, job: Job, state: str, message: str) -> None:
        """Tell the end of a job whose main process has gone unseen, and end what it left.

        Nobody knows since when its process group may be a stranger's: only marks count.
        """
        job.alive, job.left_at = False, 0
        self.jobs[job.key] = self.tasks[job.task] = job
        if job.end is None:
            self._tell(job, state, message)
        self._end_rest(job, ())

    def reap(self) -> None:
        """Wait for every child that has ended, whosever it is."""
        ended = []
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self.trees.forget(pid)
            self._ownerless.pop(pid, None)
            if (job := self.mains.pop(pid, None)) is not None:
                job.alive = False
                used = {"cpu": round(usage.ru_utime + usage.ru_stime, 6), "rss": usage.ru_maxrss * 1024}
                job.exit = proc.how_it_ended(status) | used
                ended.append(job)
                if not job.stopping:
                    self._tell(job, "exited")
        self._look_after(ended)

    def stop(self, key: str, grace: float) -> None:
        """SIGTERM to the whole tree now, SIGKILL after `grace`; twice is fine."""
        self.reap()  # an end that came before the request counts as such
        job = self.jobs.get(key)
        if job is None or job.end is not None:
            return
        deadline = time.monotonic() + max(0.0, grace)
        if job.stopping:
            job.deadline = min(deadline, job.deadline or deadline)
            return
        job.stopping, job.deadline = True, deadline
        self._closing[key] = job
        self.trees.signal(job, self._strays().get(key, ()), signal.SIGTERM)

    def kill(self, key: str, gone: Callable[[], None]) -> None:
        """End everything of the job by force and call `gone` when nothing is left."""
        job = self.jobs.get(key)
        if job is None or job.task not in self.tasks:
            gone()
            return
        job.stopping = job.stopping or job.end is None
        job.deadline = time.monotonic()
        job.waiters.append(gone)
        self._closing[key] = job

    def confirm(self, key: str) -> None:
        """Somebody who was told the end of this job has taken it."""
        if (job := self.jobs.get(key)) is not None:
            job.acked = True
            self._release(job)

    def attend(self) -> None:
        """Do what is due by itself: force, looks, ends that could not be written."""
        now = time.monotonic()
        for job in list(self._closing.values()):
            self._press(job, now)
        for pid in [pid for pid, due in self._ownerless.items() if due <= now]:
            self._ownerless[pid] = now + _AGAIN
            self.trees.signal_tree(pid, signal.SIGKILL)
        for job in list(self._unrecorded.values()):
            self._record(job)

    def next_look(self, now: float) -> float:
        """When `attend` has something to do, in monotonic seconds."""
        due = [now + 30.0] + [job.deadline for job in self._closing.values() if job.deadline is not None]
        due += self._ownerless.values()
        if any(job.adopted and not job.alive for job in self._closing.values()):
            due.append(now + _LOOK)
        if self._unrecorded:
            due.append(now + 1.0)
        return min(due)

    # -- inside ------------------------------------------------------------------------------

    def _look_after(self, ended: list[Job]) -> None:
        """End what the ended ones left behind, and settle those of which nothing is left."""
        if not ended and not self._closing and not self._ownerless and self.tasks:
            return
        strays = self._strays()
        for job in ended:
            if job.key in strays and not job.stopping:
                self._end_rest(job, strays[job.key])
            elif job.key not in strays:
                self._settle(job)
        for job in list(self._closing.values()):
            if not job.alive and not job.adopted and job.key not in strays:
                self._settle(job)
        if ended and not self.tasks:
            self._strays()  # what could not be told apart before belongs to nobody now

    def _press(self, job: Job, now: float) -> None:
        if job.adopted and not job.alive:
            # One look at /proc can miss a process that is just being made: two in a row can't.
            job.empty_looks = 0 if self.trees.members(job, ()) else job.empty_looks + 1
            if job.empty_looks > 1:
                self._settle(job)
                return
        if job.deadline is not None and job.deadline <= now:
            job.deadline = now + _AGAIN
            self.trees.signal(job, self._strays().get(job.key, ()), signal.SIGKILL)

    def _end_rest(self, job: Job, strays: list[int] | tuple[()]) -> None:
        job.deadline = time.monotonic() + float(job.facts.get("grace", 10.0))
        self._closing[job.key] = job
        self.trees.signal(job, strays, signal.SIGTERM)

    def _adopted_ended(self, job: Job) -> None:
        self.selector.unregister(job.pidfd)
        os.close(job.pidfd)
        job.alive, job.left_at = False, proc.ticks_now()
        if not job.stopping:
            self._tell(job, "lost", UNKNOWN_CODE)
            self._end_rest(job, ())

    def _settle(self, job: Job) -> None:
        """Nothing of it is left."""
        self._closing.pop(job.key, None)
        self.tasks.pop(job.task, None)
        if job.end is None:
            self._tell(job, "stopped")
        for gone in job.waiters:
            gone()
        job.waiters.clear()
        self._release(job)

    def _tell(self, job: Job, state: str, message: str = "") -> None:
        job.end = {"state": state, "ended": time.time_ns() // 1000, **job.exit}
        if message:
            job.end["message"] = message
        job.facts |= job.end
        self.recent[job.key] = None
        if len(self.recent) > RECENT:
            del self.recent[next(iter(self.recent))]
        self._record(job)
        self._told(job.key, job.end)

    def _record(self, job: Job) -> None:
        try:
            self.journal.append(journals.ENDED, job.key, job.end or {})
        except OSError as error:
            if job.key not in self._unrecorded:
                print(f"the end of {job.key} waits for the journal: {error}", file=sys.stderr, flush=True)
            self._unrecorded[job.key] = job
            return
        job.recorded = True
        self._unrecorded.pop(job.key, None)
        self._release(job)

    def _release(self, job: Job) -> None:
        if job.acked and job.recorded and job.task not in self.tasks:
            self.jobs.pop(job.key, None)

    def _strays(self) -> dict[str, list[int]]:
        owned, ownerless = self.trees.strays(self.mains, self.tasks)
        for pid in ownerless:
            if pid not in self._ownerless:
                self._ownerless[pid] = time.monotonic() + _OWNERLESS_GRACE
                self.trees.signal_tree(pid, signal.SIGTERM)
        return owned
