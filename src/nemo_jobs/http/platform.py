"""The service itself: health, status, profiles, metrics, and the API document."""

import json

from nemo_jobs.domain.model import Json
from nemo_jobs.domain.profiles import Profile
from nemo_jobs.http import exchange
from nemo_jobs.http.identity import readable
from nemo_jobs.http.jobs import JOBS
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import Request
from nemo_jobs.http.routes import Operation
from nemo_jobs.http.sweep import OPERATIONS as SWEEP
from nemo_jobs.http.wire import Reply, json_reply

#: The services of the family that this program answers for.
SERVICES = ("entities", "auth", "secrets", "files", "jobs")
PROFILES = JOBS.split("/workspaces/")[0] + "/execution-profiles"


async def get_live(api: Api, request: Request) -> Reply:
    return json_reply({"status": "live"})


async def get_ready(api: Api, request: Request) -> Reply:
    problem = api.parts.db.problem
    if problem is not None:
        return json_reply({"status": "not_ready", "detail": problem}, 503, ((b"retry-after", b"2"),))
    return json_reply({"status": "ready"})


async def get_service_status(api: Api, request: Request) -> Reply:
    parts = api.parts
    problem = parts.db.problem
    loops = dict(parts.engine.health()) if parts.engine else {}
    troubles = list(parts.engine.problems()) if parts.engine else []
    healthy = all(loops.values())
    ready = [] if problem else list(SERVICES)
    not_ready = [{"name": name, "message": problem} for name in SERVICES] if problem else []
    said: Json = {
        "status": "unhealthy" if problem else "healthy" if healthy and not troubles else "degraded",
        "services": {"ready": ready, "not_ready": not_ready},
        "controllers": {"healthy": healthy, "status": loops},
    }
    if readable(request) is not None:
        # What follows names jobs, paths and profiles of all workspaces; a problem names machines.
        for item in not_ready:
            item["message"] = "the database can't be used now"
        return json_reply(said)
    return json_reply(
        {
            **said,
            "version": parts.version,
            "problems": troubles,
            "held_steps": dict(parts.engine.snapshot()) if parts.engine else {},
            "profiles_left_out": _left_out(api),
            "log_followers": len(api.streams),
        }
    )


async def get_cluster_info(api: Api, request: Request) -> Reply:
    return json_reply({"platform_version": api.parts.version, "revision": api.parts.revision})


async def get_discovery(api: Api, request: Request) -> Reply:
    gate = api.gate
    if gate is None:
        return json_reply({"auth_enabled": False, "oidc": None})
    platform = api.parts.settings.platform
    # Without an issuer the service itself is what clients exchange the token of a task with.
    login = {"issuer": exchange.base_of(request, platform), "client_id": exchange.CLIENT}
    if gate.issuer is not None:
        login = await gate.issuer.discovery()
    return json_reply({"auth_enabled": True, "oidc": {**login, **exchange.told(request, platform)}})


async def get_profiles(api: Api, request: Request) -> Reply:
    return json_reply([profile.to_wire() | _health(api, profile) for profile in api.parts.profiles.listed()])


async def get_metrics(api: Api, request: Request) -> Reply:
    body, kind = await api.metrics.exposition()
    return Reply(body, 200, ((b"content-type", kind.encode()),))


async def get_document(api: Api, request: Request) -> Reply:
    # Loaded when somebody asks: the models of answers are needed for nothing else.
    from nemo_jobs.http.openapi import document

    return Reply(json.dumps(document(api.operations, api.parts.version)).encode())


def _health(api: Api, profile: Profile) -> Json:
    """Whether work can be started on it now; nothing where this process doesn't know."""
    if api.parts.engine is None:
        return {}
    why = profile.unavailable or api.parts.engine.trouble(profile)
    return {"health": {"ok": not why, "message": why}}


def _left_out(api: Api) -> list[Json]:
    profiles = api.parts.profiles
    refused = {profile.key: profile.unavailable for profile in profiles if profile.unavailable}
    return [
        {"provider": provider, "profile": profile, "reason": reason}
        for (provider, profile), reason in {**profiles.left_out, **refused}.items()
    ]


OPERATIONS = (
    Operation("GET", PROFILES, get_profiles, "List the execution profiles", "ProfileList"),
    Operation(
        "GET",
        "/status",
        get_service_status,
        "State of the service and its loops",
        "ServiceStatus",
        scope="any",
    ),
    Operation("GET", "/health/live", get_live, "Whether the process answers", "Live", scope="none"),
    Operation(
        "GET",
        "/health/ready",
        get_ready,
        "Whether the service can take work",
        "Ready",
        errors=(503,),
        scope="none",
    ),
    Operation(
        "GET", "/cluster-info", get_cluster_info, "Version of the service", "ClusterInfo", scope="none"
    ),
    Operation("GET", "/apis/auth/discovery", get_discovery, "How to log in", "Discovery", scope="none"),
    Operation(
        "GET", "/metrics", get_metrics, "Metrics for Prometheus", None, media="text/plain", scope="read*"
    ),
    *SWEEP,
    Operation("GET", "/openapi.json", get_document, "This document", "Object", scope="none"),
)
