"""The GPU pools: which devices there are, who has them, and who waits for some."""

import sqlalchemy as sa

from nemo_jobs.store.tables import Big, Int, Text, metadata

#: One a host whose GPUs are shared out. Whoever changes who has a device of it locks this row first.
gpu_pool = sa.Table(
    "gpu_pool",
    metadata,
    sa.Column("pool", Text, primary_key=True),
    sa.Column("host_name", Text, nullable=False),  # for people
    sa.Column("source", Text, nullable=False),
    sa.Column("notes", Text, nullable=False),  # JSON list of sentences
    sa.Column("looked_at", Big, nullable=False),
    sqlite_with_rowid=False,
)

#: Services that start work on a pool's devices: for which profiles, and until when that is believed.
gpu_server = sa.Table(
    "gpu_server",
    metadata,
    sa.Column("pool", Text, primary_key=True),
    sa.Column("owner", Text, primary_key=True),
    sa.Column("token", Text, nullable=False),
    sa.Column("host", Text, nullable=False),
    sa.Column("profiles", Text, nullable=False),  # JSON list of provider/profile
    sa.Column("chosen", Text, nullable=False),  # what of the host's devices it is to share out
    sa.Column("started_at", Big, nullable=False),
    sa.Column("until", Big, nullable=False),
    sqlite_with_rowid=False,
)

#: `holder` is the id of a step, or that of a reservation; null: free. What is held stays here also
#: when the device isn't one of the pool any more.
gpu_device = sa.Table(
    "gpu_device",
    metadata,
    sa.Column("pool", Text, primary_key=True),
    sa.Column("id", Text, primary_key=True),
    sa.Column("position", Int, nullable=False),
    sa.Column("uuid", Text, nullable=False),
    sa.Column("driver_index", Text, nullable=False),
    sa.Column("model", Text, nullable=False),
    sa.Column("in_pool", Int, nullable=False),
    sa.Column("trouble", Text, nullable=False),  # why it can't be given out; empty: it can
    sa.Column("used_by", Text, nullable=False),  # foreign processes; empty: none
    sa.Column("missing_since", Big),
    sa.Column("use_percent", Int),
    sa.Column("memory_used", Big),
    sa.Column("memory_total", Big),
    sa.Column("holder", Text),
    sa.Column("token", Text),  # of the service that took it for a step
    sa.Column("since", Big),
    sa.Column("about", Text),  # JSON: who that is, for people
    sa.Column("fresh", Int, nullable=False),  # given back since the last look at the host
    sqlite_with_rowid=False,
)

#: Reservations, for as long as they last, and steps at work that wait for devices. Steps that wait
#: for their start stand in the table of steps.
gpu_request = sa.Table(
    "gpu_request",
    metadata,
    sa.Column("pool", Text, primary_key=True),
    sa.Column("holder", Text, primary_key=True),
    sa.Column("count", Int, nullable=False),
    sa.Column("asked_at", Big, nullable=False),
    sa.Column("about", Text, nullable=False),
    sa.Column("token", Text),  # of the service that looks after the step
    sqlite_with_rowid=False,
)
