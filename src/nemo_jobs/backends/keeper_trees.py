"""Which processes belong to which job, escaped ones included.

The keeper is a child subreaper: a process whose parent ends becomes the keeper's child, whatever
session it made for itself. So what a job leaves behind is found among the keeper's own children
and below them. Whose it is says its process group or one of its marks. One that has changed all of
them is told by elimination: it belongs to the only job there is, or to nobody any more.

Jobs taken over from a keeper that was killed are not our children: they are found by looking at
every process. Standard library only: the keeper runs this.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any

from nemo_jobs.backends import keeper_process as proc
from nemo_jobs.backends.keeper_process import Family, Process

Json = dict[str, Any]

_FRESH = 0.04  # seconds for which one look at every process serves all jobs


class Job:
    """What the keeper knows of one start. `facts` is what it tells and writes down."""

    __slots__ = (
        "acked", "adopted", "alive", "deadline", "empty_looks", "end", "exit", "facts", "key",
        "left_at", "mark", "pid", "pidfd", "recorded", "start", "stopping", "waiters",
    )  # fmt: skip

    def __init__(self, key: str, facts: Json, *, adopted: bool = False) -> None:
        self.key = key
        self.facts = facts
        self.pid: int = facts.get("pid") or 0
        self.start: int = facts.get("start") or 0
        self.mark = proc.mark_of(self.task)
        self.adopted = adopted
        self.alive = True  # the main process; False once it is waited for
        self.exit: Json = {}
        self.end: Json | None = None  # what was told
        self.recorded = False  # the end is in the journal
        self.acked = False
        self.stopping = False
        self.deadline: float | None = None  # when to use force
        self.left_at = 0  # in ticks: when an adopted main process was seen to have ended
        self.empty_looks = 0
        self.pidfd = -1
        self.waiters: list[Callable[[], None]] = []

    @property
    def task(self) -> str:
        return str(self.facts["task"])


class Trees:
    """Finds and signals the processes of jobs."""

    def __init__(self) -> None:
        self._cheap = proc.has_children_files()
        self._owners: dict[int, str] = {}  # strays whose job was told before
        self._seen_at = -1.0
        self._everything: dict[int, Process] = {}
        self._marks: dict[int | str, list[int]] = {}  # pids by number and by name

    def forget(self, pid: int) -> None:
        self._owners.pop(pid, None)

    def strays(self, mains: dict[int, Job], tasks: dict[str, Job]) -> tuple[dict[str, list[int]], list[int]]:
        """Our children that no start made: by key of their job, and those that have no job left."""
        owned: dict[str, list[int]] = {}
        ownerless: list[int] = []
        if not mains and not proc.any_child():
            return owned, ownerless
        for pid in self._children():
            if pid in mains:
                continue
            key = self._owner(pid, mains, tasks)
            if key is None and len(tasks) == 1:
                key = self._owners[pid] = next(iter(tasks.values())).key
            if key is not None:
                owned.setdefault(key, []).append(pid)
            elif not tasks:
                ownerless.append(pid)
        return owned, ownerless

    def members(self, job: Job, strays: Iterable[int]) -> list[Process]:
        """Every living process of the job."""
        if job.adopted:
            return self._members_by_look(job)
        family = Family(None if self._cheap else proc.processes())
        return list(family.tree([*strays, *([job.pid] if job.alive else [])]))

    def signal(self, job: Job, strays: Iterable[int], number: int) -> None:
        """Send it to the whole group while its leader holds the number, and to each other one.

        After SIGTERM also SIGCONT: a halted process could not act on it.
        """
        members = self.members(job, strays)
        by_group = job.alive and self._leader_is_ours(job)
        for each in (number, signal.SIGCONT) if number == signal.SIGTERM else (number,):
            if by_group:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(job.pid, each)
            for member in members:
                if not (by_group and member.pgid == job.pid):
                    proc.send(member, each)

    def signal_tree(self, pid: int, number: int) -> None:
        for each in Family(None if self._cheap else proc.processes()).tree([pid]):
            proc.send(each, number)

    def marked(self, task: str) -> list[Process]:
        """Every process of this machine that carries a mark of the task."""
        self._look()
        pids = {*self._marks.get(proc.mark_of(task), ()), *self._marks.get(task, ())}
        return [self._everything[pid] for pid in pids]

    def _children(self) -> list[int]:
        if self._cheap:
            return proc.own_children()
        return Family(proc.processes()).children(os.getpid())

    def _owner(self, pid: int, mains: dict[int, Job], tasks: dict[str, Job]) -> str | None:
        """The key of its job; None when it can't be told."""
        if pid in self._owners:
            return self._owners[pid]
        found = proc.process(pid)
        if found is None or not found.alive:
            return None
        job = mains.get(found.sid) or mains.get(found.pgid)
        if job is None:
            number, name = proc.marks_of(pid)
            job = next((job for job in tasks.values() if number == job.mark), tasks.get(name))
        if job is None:
            job = next((job for job in tasks.values() if job.pid in (found.sid, found.pgid)), None)
        if job is not None:
            self._owners[pid] = job.key
        return self._owners.get(pid)

    def _leader_is_ours(self, job: Job) -> bool:
        if not job.adopted:
            return True  # not waited for yet, so its number can't be given to another one
        found = proc.process(job.pid)
        return found is not None and found.start == job.start

    def _look(self) -> None:
        if time.monotonic() - self._seen_at < _FRESH:
            return
        self._everything = {p.pid: p for p in proc.processes().values() if p.alive and p.pid != os.getpid()}
        self._marks = {}
        for pid in self._everything:
            for mark in proc.marks_of(pid):
                if mark:
                    self._marks.setdefault(mark, []).append(pid)
        self._seen_at = time.monotonic()

    def _members_by_look(self, job: Job) -> list[Process]:
        roots = [each.pid for each in self.marked(job.task)]
        ours = job.alive and self._leader_is_ours(job)
        for each in self._everything.values():
            # While its leader lived the group was ours; one joined later may be a stranger's.
            in_group = job.pid in (each.pgid, each.sid) and job.pid != 0
            if in_group and (ours or (not job.alive and each.start <= job.left_at)):
                roots.append(each.pid)
        return list(Family(self._everything).tree(roots))
