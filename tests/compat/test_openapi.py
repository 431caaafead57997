"""The API document: all that the contract names is in it, and the answers keep what it says."""

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from nemo_jobs.http.app import OPERATIONS
from nemo_jobs.http.openapi import document
from tests.http.kit import open_service, served

JOBS, JOB = "/apis/jobs/v2/workspaces/{}/jobs", "/apis/jobs/v2/workspaces/{}/jobs/{}"
SPACES, SECRETS = "/apis/entities/v2/workspaces", "/apis/secrets/v2/workspaces/{}/secrets"
FILESETS = "/apis/files/v2/workspaces/{}/filesets"
#: Method, path, success: the job routes, their neighbours, and what newer servers of the family add.
ROUTES = f"""
GET /apis/jobs/v2/execution-profiles 200
POST {JOBS} 201            GET {JOBS} 200              GET {JOB} 200           DELETE {JOB} 204
POST {JOB}/cancel 200      POST {JOB}/pause 200        POST {JOB}/resume 200   POST {JOB}/rerun 200
GET {JOB}/status 200       PATCH {JOB}/status-details 200                      GET {JOB}/logs 200
POST {JOB}/results/{{}} 201  GET {JOB}/results 200       GET {JOB}/results/{{}} 200
GET {JOB}/results/{{}}/download 200                      GET {JOB}/steps 200     GET {JOB}/steps/{{}} 200
PATCH {JOB}/steps/{{}}/status 200                        GET {JOB}/steps/{{}}/tasks 200
PUT {JOB}/steps/{{}}/tasks/{{}} 200                        GET {JOB}/steps/{{}}/tasks/{{}} 200
GET /status 200            GET /health/live 200        GET /health/ready 200   GET /cluster-info 200
GET /apis/auth/discovery 200
GET {SPACES} 200           POST {SPACES} 201           GET {SPACES}/{{}} 200
PUT {SPACES}/{{}} 200        DELETE {SPACES}/{{}} 200
GET {SPACES}/{{}}/projects 200                           POST {SPACES}/{{}}/projects 201
GET {SECRETS} 200          POST {SECRETS} 201          GET {SECRETS}/{{}} 200    PATCH {SECRETS}/{{}} 200
DELETE {SECRETS}/{{}} 204    GET {SECRETS}/{{}}/access 200
GET {FILESETS} 200         POST {FILESETS} 200         GET {FILESETS}/{{}} 200   PATCH {FILESETS}/{{}} 200
DELETE {FILESETS}/{{}} 200   GET {FILESETS}/{{}}/files 200
PUT {FILESETS}/{{}}/-/{{}} 200                             GET {FILESETS}/{{}}/-/{{}} 200
HEAD {FILESETS}/{{}}/-/{{}} 200                            DELETE {FILESETS}/{{}}/-/{{}} 200
POST {FILESETS}/{{}}/otlp/v1/logs 200                    POST {FILESETS}/{{}}/otlp/v1/logs/query 200
PATCH {JOB} 200            PATCH {JOB}/control 200     GET {JOB}/attempts 200  GET {JOB}/attempts/{{}} 200
PATCH {JOB}/attempts/{{}}/status-details 200             GET {JOB}/attempts/{{}}/steps 200
GET {JOB}/attempts/{{}}/steps/{{}} 200                     PATCH {JOB}/attempts/{{}}/steps/{{}}/status 200
GET {JOB}/attempts/{{}}/steps/{{}}/tasks 200               PUT {JOB}/attempts/{{}}/steps/{{}}/tasks/{{}} 200
GET {JOB}/attempts/{{}}/steps/{{}}/tasks/{{}} 200
"""


def bare(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", path)


@pytest.fixture(scope="module")
def ours() -> dict[tuple[str, str], Any]:
    paths = document(OPERATIONS, "0")["paths"]
    return {
        (method.upper(), bare(path)): said for path, found in paths.items() for method, said in found.items()
    }


@pytest.mark.parametrize("route", re.findall(r"([A-Z]+) (/\S+) (\d+)", ROUTES), ids=" ".join)
def test_each_route_is_there_with_its_success_code(
    ours: dict[tuple[str, str], Any], route: tuple[str, str, str]
) -> None:
    method, path, status = route
    assert status in ours[method, path]["responses"]


def test_a_conflict_is_documented_where_it_can_be(ours: dict[tuple[str, str], Any]) -> None:
    for route in (
        ("POST", JOBS),
        ("DELETE", JOB),
        ("PATCH", JOB + "/steps/{}/status"),
        ("POST", JOB + "/rerun"),
    ):
        assert "409" in ours[route]["responses"], route


SEED = os.environ.get("NEMO_JOBS_SEED", "20270304")
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "response_headers_conformance"
)


@pytest.mark.time_limit(600)
@pytest.mark.parametrize(("phase", "most"), [("coverage", "5"), ("fuzzing", "3"), ("stateful", "25")])
async def test_answers_are_what_the_document_says(tmp_path: Path, phase: str, most: str) -> None:
    """Made-up requests to every route, alone and in the order of the links: no 5xx, no status that
    is not documented, every answer of its schema. Nothing runs the jobs that are created."""
    async with open_service(tmp_path) as service, served(service.app) as port:
        process = await asyncio.create_subprocess_exec(
            *(Path(sys.executable).parent / "st", "run", f"http://127.0.0.1:{port}/openapi.json"),
            *("--seed", SEED, "--phases", phase, "--max-examples", most, "--checks", CHECKS),
            *("--exclude-path-regex", "/logs/stream$", "--warnings", "off", "--request-timeout", "20"),
            *("--suppress-health-check", "all", "--generation-database", "none"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=tmp_path,
        )
        out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
