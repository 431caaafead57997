"""nemo-jobs: a batch jobs service."""

__version__ = "0.1.0"
