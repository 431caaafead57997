"""What a new keeper does with the journal of one that was killed.

| journal says | found | so |
|---|---|---|
| running | the process (pid and start time, same boot) | adopted: watched; its end is told as lost |
| running | not there | lost |
| starting | a process with its mark | adopted |
| starting | none, but the output file is there | lost: it may have run, so it never runs again |
| starting | none, and no output file | void: it never ran, and may be started again |
| anything of an earlier boot | – | lost, because the host restarted |
| ended | processes with its mark | they are ended |

The lock of the killed keeper is held by a child that has not reached its program yet. So whoever
has the lock sees every child either with its own environment or not at all.
Standard library only: the keeper runs this.
"""

import json
import os
from typing import Any

from nemo_jobs.backends import keeper_files as files
from nemo_jobs.backends import keeper_journal as journals
from nemo_jobs.backends import keeper_process as proc
from nemo_jobs.backends.keeper_ends import UNKNOWN_CODE, Ends
from nemo_jobs.backends.keeper_process import Process
from nemo_jobs.backends.keeper_trees import Job

Json = dict[str, Any]

RESTARTED = "The host restarted while the process ran."


def recover(ends: Ends, boot: str, keeper: str, identity: str) -> None:
    """Adopt, bury or void everything whose end is not in the journal."""
    if not os.path.getsize(ends.journal.path):
        return
    open_jobs = journals.unfinished(ends.journal.path)
    for key, facts in open_jobs.items():
        job, found = Job(key, facts, adopted=True), ends.trees.marked(facts["task"])
        out = files.out_of(keeper, job.task)
        if facts["boot"] != boot:
            ends.bury(job, "lost", RESTARTED)
        elif job.pid == 0 and not found and not os.path.exists(out + ".out"):
            files.take_back(facts["root"], facts["dir"], out, identity)
            ends.journal.append(journals.VOID, key, {})
        else:
            _adopt_or_bury(ends, job, found)
    _end_rests(ends)


def _adopt_or_bury(ends: Ends, job: Job, found: list[Process]) -> None:
    leaders = sorted((p for p in found if p.sid == p.pid), key=lambda p: p.start)
    if job.pid == 0 and leaders:
        job.pid, job.start = leaders[0].pid, leaders[0].start
        ran: Json = {"state": "running", "pid": job.pid, "start": job.start}
        job.facts |= ran
        ends.journal.append(journals.RUNNING, job.key, ran)
    now = proc.process(job.pid) if job.pid else None
    if now is not None and now.alive and now.start == job.start:
        try:
            ends.adopt(job)
            return
        except ProcessLookupError:
            pass
    ends.bury(job, "lost", UNKNOWN_CODE)


def _end_rests(ends: Ends) -> None:
    """End what ended jobs of this journal left running."""
    with_rests = set()
    for kind, key, text in journals.lines(ends.journal.path):
        if kind == journals.STARTING and key not in ends.jobs and ends.trees.marked(json.loads(text)["task"]):
            with_rests.add(key)
    for key, facts in journals.fold(ends.journal.path, with_rests).items() if with_rests else ():
        job = Job(key, facts, adopted=True)
        job.end, job.recorded, job.acked = facts, True, True
        ends.bury(job, "", "")
