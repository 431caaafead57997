"""Results over HTTP: posting, listing, downloading, and what is refused."""

import asyncio
import hashlib
import io
import json
import tarfile

import pytest

from nemo_jobs.domain.states import Trigger
from nemo_jobs.files.objects import new_key
from nemo_jobs.http import results as http_results
from nemo_jobs.store import files, results
from nemo_jobs.store.results import Gathered
from tests.http.kit import JOBS, body, served
from tests.http.tokens_kit import bearer, make_task_token, make_token, open_guarded

FILES = "/apis/files/v2/workspaces/default/filesets"
RESULTS = f"{JOBS}/moth/results"
OWN = "default/job-fileset-moth#"


def posting(path="results/weights", **over):
    return {"artifact_url": OWN + path, "artifact_storage_type": "fileset", **over}


async def upload(service, path, content, fileset="job-fileset-moth"):
    headers = {"content-type": "application/octet-stream"}
    answer = await service.client.put(f"{FILES}/{fileset}/-/{path}", content=content, headers=headers)
    assert answer.status_code == 200, answer.text


async def posted(service, name, path):
    answer = await service.client.post(f"{RESULTS}/{name}", json=posting(path))
    assert answer.status_code == 201, answer.text
    return answer.json()


async def collected(service, step, *items):
    """What a step left, stored as its engine does it: (name, {path: bytes}), a lone file under ''."""
    left = []
    for name, contents in items:
        written = []
        for path, content in contents.items():
            key = new_key()
            await service.db.write(files.announce, [key], service.clock.now())

            async def pieces(content=content):
                yield content

            written.append((path, await service.app._api.parts.objects.put(key, pieces())))
        left.append(Gathered(name, "" not in contents, tuple(written)))
    names = await service.db.write(results.collect, "token", step.id, left, service.clock.now())
    assert names is not None
    return names


async def detail(answer, status):
    assert answer.status_code == status, answer.text
    return answer.json()["detail"]


async def test_a_posted_result_is_shown_as_the_contract_says(service):
    job = await service.create()
    made = await posted(service, "weights", "results/weights")
    now = made["created_at"]
    assert made == {
        "name": "weights", "job": job["id"], "workspace": "default", "project": None,
        "created_at": now, "updated_at": now, "artifact_url": OWN + "results/weights",
        "artifact_storage_type": "fileset", "download_url": None,
        "attempt_id": job["attempt_id"], "step": None, "original_name": None,
    }  # fmt: skip
    assert (await service.client.get(f"{RESULTS}/weights")).json() == made
    assert (await service.client.get(RESULTS)).json() == {"data": [made]}
    assert (await service.client.get(f"{JOBS}/{job['id']}/results/weights")).json() == made


async def test_a_duplicate_is_409_and_names_both(service):
    await service.create()
    await posted(service, "weights", "a")
    answer = await service.client.post(f"{RESULTS}/weights", json=posting("b"))
    assert await detail(answer, 409) == (
        "job 'moth' in workspace 'default' has a result 'weights' already; "
        "choose another name, or get the one that is there"
    )
    assert answer.headers["x-should-retry"] == "false"


async def test_of_posts_of_one_name_at_once_one_wins(service):
    await service.create()
    answers = await asyncio.gather(
        *(service.client.post(f"{RESULTS}/weights", json=posting(str(n))) for n in range(8))
    )
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 7


@pytest.mark.parametrize(
    "given", [{}, {"artifact_url": OWN + "a"}, {**posting(), "artifact_storage_type": "s3"},
             {**posting(), "artifact_url": 7}, {**posting(), "attempt_id": 3}, []],
)  # fmt: skip
async def test_a_body_that_does_not_fit_is_422(service, given):
    await service.create()
    answer = await service.client.post(f"{RESULTS}/weights", json=given)
    assert answer.status_code == 422
    assert isinstance(answer.json()["detail"], list)


async def test_unknown_jobs_attempts_and_names_are_told(service):
    await service.create()
    base = f"{JOBS}/mole/results"
    for answer in (
        await service.client.post(f"{base}/weights", json=posting()),
        await service.client.get(base),
        await service.client.get(f"{base}/weights"),
        await service.client.get(f"{base}/weights/download"),
    ):
        assert await detail(answer, 404) == "no job 'mole' in workspace 'default'"
    for path in ("nope", "nope/download"):
        answer = await service.client.get(f"{RESULTS}/{path}")
        assert await detail(answer, 404) == "no result 'nope' in job 'moth' of workspace 'default'"
    for attempt, status in (("7", 404), ("platform-job-attempt-x", 404), ("latest", 422)):
        answer = await service.client.get(RESULTS, params={"attempt_id": attempt})
        assert answer.status_code == status, answer.text
        answer = await service.client.post(f"{RESULTS}/weights", json=posting(attempt_id=attempt))
        assert answer.status_code == status, answer.text
    answer = await service.client.get(RESULTS, params={"sort": "name"})
    assert answer.status_code == 422


@pytest.mark.parametrize(
    "name", ["..%2f..%2fetc%2fpasswd", "%252e%252e", "..%5cx", "%2fetc%2fpasswd", "a%2f..%2f..%2fb", "A", "x",
             "a--b", "ab-", "a" * 64, "%0a", "ab%0a", "%ff", "%00"],
)  # fmt: skip
async def test_c047_a_name_that_could_lead_elsewhere_is_refused(service, name):
    await service.create()
    answer = await service.client.post(f"{RESULTS}/{name}", json=posting())
    assert answer.status_code in (404, 405, 422), answer.text
    for path in (name, f"{name}/download"):
        answer = await service.client.get(f"{RESULTS}/{path}")
        assert answer.status_code in (404, 405), answer.text
    assert (await service.client.get(RESULTS)).json() == {"data": []}


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/latest/meta-data", "file:///etc/passwd", "http://localhost:8080/x#y",
            "http://2130706433/x#y", "https://evil.example/a/b#c", "s3://bucket/key#x", "//evil/x#y",
            OWN + "../../etc/passwd", OWN + "a/../../b", OWN + "/etc/passwd", OWN + "a\\b", OWN + "a\x00b",
            OWN + "a/%2e%2e/b", OWN + "a/%252e%252e/b", OWN, "default/job-fileset-moth", "", OWN + "x" * 3000,
            "default/job-fileset-other#secret", "default/nowhere#a", "nowhere/nowhere#a"],
)  # fmt: skip
async def test_c099_an_address_that_is_no_place_of_the_job_is_422(service, url):
    await service.create()
    await service.create(name="other")
    await upload(service, "secret", b"s", "job-fileset-other")
    answer = await service.client.post(f"{RESULTS}/weights", json={**posting(), "artifact_url": url})
    assert answer.status_code == 422, answer.text
    assert (await service.client.get(RESULTS)).json() == {"data": []}


async def test_every_form_of_a_place_is_understood(service):
    await service.create()
    await upload(service, "a/b.bin", b"bytes")
    for name, url in {
        "one": "default/job-fileset-moth#a/b.bin",
        "two": "job-fileset-moth#a/b.bin",
        "three": "fileset://default/job-fileset-moth#a/b.bin",
    }.items():
        answer = await service.client.post(f"{RESULTS}/{name}", json={**posting(), "artifact_url": url})
        assert answer.status_code == 201, answer.text
        assert answer.json()["artifact_url"] == url
        assert (await service.client.get(f"{RESULTS}/{name}/download")).content == b"bytes"


async def test_a_file_is_downloaded_with_the_headers_that_clients_need(service):
    await service.create()
    content = bytes(range(256)) * 8
    await upload(service, "results/weights", content)
    await posted(service, "weights", "results/weights")
    answer = await service.client.get(f"{RESULTS}/weights/download")
    assert (answer.status_code, answer.content) == (200, content)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="weights"'
    assert answer.headers["content-length"] == "2048"
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["etag"] == f'"{hashlib.sha256(content).hexdigest()}"'
    assert "content-encoding" not in answer.headers


async def test_parts_and_conditions(service):
    await service.create()
    await upload(service, "w", b"0123456789")
    await posted(service, "weights", "w")
    url = f"{RESULTS}/weights/download"
    tag = (await service.client.get(url)).headers["etag"]
    for asked, status, content in (
        ("bytes=2-4", 206, b"234"), ("bytes=8-", 206, b"89"), ("bytes=-3", 206, b"789"),
        ("bytes=0-99", 206, b"0123456789"), ("bytes=0-1,3-4", 200, b"0123456789"),
        ("lines=1-2", 200, b"0123456789"),
    ):  # fmt: skip
        answer = await service.client.get(url, headers={"range": asked})
        assert (answer.status_code, answer.content) == (status, content), asked
    answer = await service.client.get(url, headers={"range": "bytes=10-"})
    assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */10")
    assert "result 'weights' of job 'moth'" in answer.json()["detail"]
    assert (await service.client.get(url, headers={"if-none-match": tag})).status_code == 304
    assert (await service.client.get(url, headers={"if-match": '"other"'})).status_code == 412


async def test_a_folder_comes_as_an_archive_with_one_folder_in_it(service):
    await service.create()
    for path in ("results/ckpt/a", "results/ckpt/deep/b", "results/ckpt-other"):
        await upload(service, path, path.encode())
    await posted(service, "ckpt", "results/ckpt/")
    await posted(service, "bare", "results/ckpt")
    for name in ("ckpt", "bare"):
        answer = await service.client.get(f"{RESULTS}/{name}/download")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/x-tar"
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}.tar.gz"'
        with tarfile.open(fileobj=io.BytesIO(answer.content), mode="r:gz") as archive:
            assert {member.name: member.isfile() for member in archive} == {
                name: False, f"{name}/a": True, f"{name}/deep/b": True,
            }  # fmt: skip
            inside = archive.extractfile(f"{name}/deep/b")
            assert inside is not None
            assert inside.read() == b"results/ckpt/deep/b"


async def test_a_missing_artifact_is_404_before_the_first_byte(service):
    await service.create()
    await upload(service, "file", b"x")
    for name, path in {"missing": "no/thing", "no-folder": "file/", "no-dir": "nothing/"}.items():
        await posted(service, name, path)
        text = await detail(await service.client.get(f"{RESULTS}/{name}/download"), 404)
        assert f"the artifact '{OWN}{path}' of result '{name}' of job 'moth'" in text
    await posted(service, "lost", "file")
    record = await service.db.read(files.get_file, "default", "job-fileset-moth", "file")
    await service.app._api.parts.objects.remove(record.object)
    text = await detail(await service.client.get(f"{RESULTS}/lost/download"), 404)
    assert "the bytes of result 'lost' of job 'moth'" in text
    await upload(service, "gone/a", b"x")
    await posted(service, "gone", "gone/")
    record = await service.db.read(files.get_file, "default", "job-fileset-moth", "gone/a")
    await service.app._api.parts.objects.remove(record.object)
    text = await detail(await service.client.get(f"{RESULTS}/gone/download"), 404)
    assert f"result 'gone' of job 'moth' (artifact '{OWN}gone/') are missing" in text


async def test_a_place_that_became_another_jobs_is_not_read(service):
    await service.create()
    await service.client.post(FILES, json={"name": "job-fileset-later"})
    answer = await service.client.post(
        f"{RESULTS}/later", json={**posting(), "artifact_url": "job-fileset-later#secret"}
    )
    assert answer.status_code == 201, answer.text
    assert (await service.client.delete(f"{FILES}/job-fileset-later")).status_code in (200, 204)
    await service.create(name="later")
    await upload(service, "secret", b"treasure", "job-fileset-later")
    answer = await service.client.get(f"{RESULTS}/later/download")
    assert "treasure" not in answer.text
    assert answer.status_code == 404


async def test_what_a_step_left_is_listed_with_its_step_and_downloaded_as_it_was_called(service):
    await service.create()
    step = await service.start()
    names = await collected(
        service, step, ("Mödel 1.JSON", {"": b"{}"}), ("ckpt 2", {"a": b"aa", "b/c": b"bc"})
    )
    assert names == ["model-1.json", "ckpt-2"]
    found = (await service.client.get(RESULTS, params={"sort": "created_at"})).json()["data"]
    assert [(one["name"], one["step"], one["original_name"]) for one in found] == [
        ("ckpt-2", "work", "ckpt 2"), ("model-1.json", "work", "Mödel 1.JSON"),
    ]  # fmt: skip
    answer = await service.client.get(f"{RESULTS}/model-1.json/download")
    assert answer.content == b"{}"
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-disposition"] == (
        "attachment; filename=\"M_del 1.JSON\"; filename*=UTF-8''M%C3%B6del%201.JSON"
    )
    answer = await service.client.get(f"{RESULTS}/ckpt-2/download")
    assert answer.headers["content-disposition"] == 'attachment; filename="ckpt 2.tar.gz"'
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        assert archive.getnames() == ["ckpt 2", "ckpt 2/a", "ckpt 2/b/c"]


async def test_a_later_attempts_results_are_shown_and_earlier_ones_on_demand(service):
    first = (await service.create())["attempt_id"]
    step = await service.start()
    await collected(service, step, ("model", {"": b"first"}), ("only", {"": b"x"}))
    await service.finish(step, Trigger.FAILED)
    second = (await service.client.post(f"{JOBS}/moth/rerun")).json()["attempt_id"]
    step = await service.start()
    assert (await service.client.get(f"{RESULTS}/model/download")).content == b"first"
    await collected(service, step, ("model", {"": b"second"}))

    async def names(**query):
        return sorted(one["name"] for one in (await service.client.get(RESULTS, params=query)).json()["data"])

    async def content(**query):
        return (await service.client.get(f"{RESULTS}/model/download", params=query)).content

    assert await names() == await names(attempt_id="0") == ["model", "only"]
    assert await names(attempt_id="current") == await names(attempt_id=second) == ["model"]
    assert (
        await content() == await content(attempt_id="current") == await content(attempt_id="1") == b"second"
    )
    assert await content(attempt_id="0") == await content(attempt_id=first) == b"first"
    answer = await service.client.get(f"{RESULTS}/only", params={"attempt_id": "current"})
    assert answer.status_code == 404
    answer = await service.client.post(f"{RESULTS}/only", json=posting("x"))
    assert answer.status_code == 409
    answer = await service.client.post(f"{RESULTS}/late", json=posting("x", attempt_id=first))
    assert answer.json()["attempt_id"] == first


async def test_a_long_list_comes_whole(service, monkeypatch):
    monkeypatch.setattr(http_results, "MANY", 5)
    await service.create()
    for number in range(8):
        await posted(service, f"model-{number}", f"models/{number}")
    found = (await service.client.get(RESULTS)).json()["data"]
    assert [one["name"] for one in found] == [f"model-{number}" for number in reversed(range(8))]


async def test_results_go_with_the_job(service):
    await service.create()
    await posted(service, "weights", "a")
    step = await service.start()
    await service.finish(step)
    assert (await service.client.delete(f"{JOBS}/moth")).status_code == 204
    assert (await service.client.get(RESULTS)).status_code == 404
    await service.create()
    assert (await service.client.get(RESULTS)).json() == {"data": []}


async def test_c071_a_slow_reader_holds_up_nobody_and_is_let_go(service):
    await service.create()
    big = bytes(1 << 20) * 24
    await upload(service, "big", big)
    await posted(service, "big", "big")
    async with served(service.app) as port:
        before = len(asyncio.all_tasks())
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
        writer.write(f"GET {RESULTS}/big/download HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(20):
            assert (await service.client.get(f"{JOBS}/moth")).status_code == 200
        assert loop.time() - began < 1
        writer.close()
        while len(asyncio.all_tasks()) > before:
            await asyncio.sleep(0.01)


async def test_a_result_is_no_way_around_what_a_token_allows(tmp_path):
    async with open_guarded(tmp_path) as service:
        tokens = {
            "lab": await make_token(service, {"lab": ["write"]}),
            "both": await make_token(service, {"lab": ["write"], "other": ["read"]}),
            "other": await make_token(service, {"other": ["write"]}),
        }

        async def ask(who, method, path, **given):
            token = given.pop("token", None) or tokens[who]
            return await service.client.request(method, path, headers=bearer(token), **given)

        lab, other = (f"/apis/files/v2/workspaces/{name}/filesets" for name in ("lab", "other"))
        jobs = "/apis/jobs/v2/workspaces/lab/jobs"
        assert (await ask("other", "POST", other, json={"name": "theirs"})).status_code == 200
        headers = bearer(tokens["other"], **{"content-type": "application/octet-stream"})
        answer = await service.client.put(f"{other}/theirs/-/secret", content=b"treasure", headers=headers)
        assert answer.status_code == 200
        job = (await ask("lab", "POST", jobs, json=body())).json()
        foreign = {**posting(), "artifact_url": "other/theirs#secret"}
        text = await detail(await ask("lab", "POST", f"{jobs}/moth/results/foreign", json=foreign), 403)
        assert "scope 'read' in workspace 'other'" in text
        missing = {**posting(), "artifact_url": "other/nothing#secret"}
        answer = await ask("lab", "POST", f"{jobs}/moth/results/missing", json=missing)
        assert answer.status_code == 403, "whether it exists is not told either"
        answer = await ask("both", "POST", f"{jobs}/moth/results/foreign", json=foreign)
        assert answer.status_code == 201
        download = f"{jobs}/moth/results/foreign/download"
        assert (await ask("both", "GET", download)).content == b"treasure"
        answer = await ask("lab", "GET", download)
        assert answer.status_code == 403
        assert "treasure" not in answer.text
        # A task may show its own fileset and nothing else, not even of its own workspace.
        task = await make_task_token(service, job)
        await ask("lab", "POST", lab, json={"name": "shared"})
        for name, url, status in (
            ("own", "job-fileset-moth#a", 201),
            ("shared", "shared#a", 403),
            ("theirs", "other/theirs#secret", 403),
        ):
            given = {**posting(), "artifact_url": url}
            answer = await ask("", "POST", f"{jobs}/moth/results/{name}", token=task, json=given)
            assert answer.status_code == status, answer.text
        assert (await ask("", "GET", download, token=task)).status_code == 403


def test_the_document_tells_of_them(service):
    from nemo_jobs.http.app import OPERATIONS
    from nemo_jobs.http.openapi import document

    paths = document(OPERATIONS, "0")["paths"]
    download = paths[f"{JOBS.replace('default', '{workspace}')}/{{job}}/results/{{name}}/download"]["get"]
    assert json.dumps(download["responses"]["200"]["content"]) == (
        '{"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}'
    )
