"""Filesets with their files, and the results of jobs. The bytes lie in an object store; here is
what they are called and what they must be."""

import sqlalchemy as sa

from nemo_jobs.store.tables import Big, Int, Text, metadata

#: Paths sort by their bytes on both databases, so that what is below a folder is one range.
Path = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

#: The fileset of a job gets a row when it is first written to; until then it is read from the
#: job, whose name reserves it.
fileset = sa.Table(
    "fileset",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("workspace", Text, sa.ForeignKey("workspace.name"), nullable=False),
    sa.Column("name", Text, nullable=False),
    sa.Column("job_id", Text, index=True),  # the job it was made for and goes with; null: a person's
    sa.Column("gone", Int, nullable=False),  # a job's own that was deleted before the job
    sa.Column("project", Text),
    sa.Column("description", Text),
    sa.Column("purpose", Text, nullable=False),
    sa.Column("custom_fields", Text, nullable=False),
    sa.Column("metadata", Text, nullable=False),
    sa.Column("created_at", Big, nullable=False),
    sa.Column("created_by", Text),
    sa.Column("updated_at", Big, nullable=False),
    sa.Column("updated_by", Text),
    sa.UniqueConstraint("workspace", "name", name="fileset_name"),
    sa.Index("fileset_created", "workspace", "created_at", "id"),
    sqlite_with_rowid=False,
)

#: A file is there when its row is: the object was complete before.
file = sa.Table(
    "file",
    metadata,
    sa.Column("fileset_id", Text, sa.ForeignKey("fileset.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("path", Path, primary_key=True),
    sa.Column("object", Text, nullable=False),  # its key in the object store; never used twice
    sa.Column("size", Big, nullable=False),
    sa.Column("digest", Text, nullable=False),  # sha256 of the bytes, in hex
    sa.Column("created_at", Big, nullable=False),
    sa.Column("created_by", Text),
    sqlite_with_rowid=False,
)

#: Objects to be removed: written when nothing names one any more, and before an upload, which
#: takes the row away when its file is there. Gone only after the removal.
object_removal = sa.Table(
    "object_removal",
    metadata,
    sa.Column("object", Text, primary_key=True),
    sa.Column("due_at", Big, nullable=False, index=True),
    sa.Column("tries", Int, nullable=False),
    sqlite_with_rowid=False,
)

#: `collected` ones were left by a step in its results directory, the others were posted.
result = sa.Table(
    "result",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("job_id", Text, sa.ForeignKey("job.id", ondelete="CASCADE"), nullable=False),
    sa.Column("attempt_id", Text, nullable=False),
    sa.Column("step", Text),
    sa.Column("workspace", Text, nullable=False),
    sa.Column("name", Text, nullable=False),
    sa.Column("original_name", Text),  # as the step called it, where that is no legal name
    sa.Column("artifact_url", Text, nullable=False),
    sa.Column("collected", Int, nullable=False),
    sa.Column("created_at", Big, nullable=False),
    sa.Column("updated_at", Big, nullable=False),
    sa.UniqueConstraint("job_id", "name", "attempt_id", name="result_name"),
    sqlite_with_rowid=False,
)
