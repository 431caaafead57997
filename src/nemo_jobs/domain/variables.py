"""Names of environment variables that the service itself sets for a task."""

JOB_VARIABLES = frozenset(
    f"NEMO_JOB_{name}" for name in ("ID", "ATTEMPT_ID", "STEP", "TASK", "WORKSPACE", "FILESET", "SECRETS")
)
PATH_VARIABLES = frozenset(
    {
        "NEMO_JOB_STEP_CONFIG_FILE_PATH",
        "NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH",
        "NEMO_JOB_EPHEMERAL_TASK_STORAGE_PATH",
        "NEMO_JOB_STEP_CONFIG_STORAGE_PATH",
        "NEMO_JOB_RESULTS_PATH",
        "NHX_TASK_CONFIG",
    }
)
PLATFORM_VARIABLES = frozenset(
    {"NHX_PRINCIPAL", "NHX_CONFIG_WARNINGS_DISABLED"}
    | {f"NHX_{service}_URL" for service in ("FILES", "SECRETS", "JOBS", "AUTH", "MODELS", "BASE")}
)
AUTH_VARIABLES = frozenset(
    {
        "NHX_WORKLOAD_IDENTITY_TOKEN_FILE",
        "NEMO_WORKLOAD_TOKEN_FILE",
        "NEMO_WORKLOAD_TOKEN",
        "NHX_ACCESS_TOKEN",
        "NHX_JOB_LOGS_ENDPOINT",
    }
)
AUTH_PREFIXES = ("NHX_WORKFLOW_", "NHX_WORKLOAD_", "NEMO_WORKFLOW_", "NEMO_WORKLOAD_")


def is_auth_variable(name: str) -> bool:
    """Whether `name` is of the managed auth group, which no step may set."""
    return name in AUTH_VARIABLES or name.startswith(AUTH_PREFIXES)


def is_reserved_variable(name: str) -> bool:
    """Whether `name` is one that no profile may set."""
    return name in JOB_VARIABLES | PATH_VARIABLES | PLATFORM_VARIABLES or is_auth_variable(name)
