"""Whether a spec can run on the profiles in force, before anything of it is stored."""

from nemo_jobs.domain.model import Invalid
from nemo_jobs.domain.profiles import Profile, ProfileSet
from nemo_jobs.domain.spec import (
    PERSISTENT_STORAGE_VARIABLE,
    CpuExecutor,
    JobSpec,
    StepSpec,
    SubprocessExecutor,
)
from nemo_jobs.domain.variables import is_auth_variable


def translate(spec: JobSpec, profiles: ProfileSet) -> JobSpec:
    """`spec` with its CPU steps turned into host processes, where the configuration names their
    profile among those of provider subprocess. Raises `Invalid` for one that gives no command."""
    steps = [_translated(step, profiles.explicit_subprocess) for step in spec.steps]
    if all(new is old for new, old in zip(steps, spec.steps, strict=True)):
        return spec
    return spec.model_copy(update={"steps": steps})


def check_profiles(spec: JobSpec, profiles: ProfileSet) -> None:
    """Raises `Invalid` when a step can't run: no such profile, no storage, no GPUs, several
    nodes where there is one, or a variable that only the service may set."""
    found = [(step, _profile_of(step, profiles)) for step in spec.steps]
    for step, profile in found:
        _check_storage(step, profile)
    if profiles.no_gpus:
        _check_gpus(spec)
    for step, profile in found:
        _check_nodes(step, profile)
        _check_variables(step)


def _translated(step: StepSpec, names: frozenset[str]) -> StepSpec:
    executor = step.executor
    if not isinstance(executor, CpuExecutor) or executor.profile not in names:
        return step
    command = [*executor.container.entrypoint, *executor.container.command]
    if not command:
        raise Invalid(
            f"step '{step.name}' would run as a host process (jobs.executors configures profile "
            f"'{executor.profile}' of provider subprocess) and names no program: give container.entrypoint "
            f"or container.command; or take subprocess/{executor.profile} out of jobs.executors, and cpu "
            "steps run in their containers"
        )
    if executor.resources.num_nodes > 1:
        raise Invalid(_too_many_nodes(step, executor.resources.num_nodes, f"subprocess/{executor.profile}"))
    return step.model_copy(update={"executor": SubprocessExecutor(profile=executor.profile, command=command)})


def _profile_of(step: StepSpec, profiles: ProfileSet) -> Profile:
    provider, name = step.executor.provider, step.executor.profile
    profile = profiles.get(provider, name)
    if profile is None:
        why = profiles.left_out.get((provider, name))
        reason = f"is configured but not in force: {why}" if why else "does not exist"
        raise Invalid(
            f"profile '{name}' of provider '{provider}', which step '{step.name}' asks for, {reason}; "
            f"known (provider/profile): {profiles.known()}"
        )
    if profile.unavailable is not None:
        raise Invalid(
            f"step '{step.name}' can't run on profile '{name}' of provider '{provider}': "
            f"{profile.unavailable}"
        )
    return profile


def _check_storage(step: StepSpec, profile: Profile) -> None:
    asked = any(variable.name == PERSISTENT_STORAGE_VARIABLE for variable in step.environment or ())
    if asked and not profile.persistent_storage:
        raise Invalid(
            f"profile '{profile.profile}' of provider '{profile.provider}' offers no persistent "
            f"storage, which step '{step.name}' asks for with {PERSISTENT_STORAGE_VARIABLE}"
        )


def _check_gpus(spec: JobSpec) -> None:
    for step in spec.steps:
        if step.executor.provider in ("gpu", "gpu_distributed"):
            raise Invalid(
                f"the job needs GPUs (step '{step.name}'), and Docker has none configured: pick another "
                "profile, or configure GPUs with platform.docker.reserved_gpu_device_ids"
            )


def _check_nodes(step: StepSpec, profile: Profile) -> None:
    executor = step.executor
    if isinstance(executor, SubprocessExecutor) or profile.multi_node:
        return
    if executor.resources.num_nodes > 1:
        raise Invalid(
            _too_many_nodes(step, executor.resources.num_nodes, f"{profile.provider}/{profile.profile}")
        )


def _too_many_nodes(step: StepSpec, nodes: int, where: str) -> str:
    return (
        f"step '{step.name}' asks for {nodes} nodes, and profile {where} runs a step on one: "
        "set resources.num_nodes to 1 or pick a profile on backend volcano_job"
    )


def _check_variables(step: StepSpec) -> None:
    for variable in step.environment or ():
        if is_auth_variable(variable.name):
            raise Invalid(
                f"step '{step.name}' sets {variable.name}, which only the service may set; "
                "remove it from environment"
            )
