"""`nemo jobs results`: what it asks, what it prints, and what it leaves on the disk."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.cli.conftest import Nemo, Ran
from tests.cli.scripted import Reply, Scripted, Seen, scripted

BASE = "/apis/jobs/v2/workspaces/default/jobs/moth"
FILES = "/apis/files/v2/workspaces/default/filesets/job-fileset-moth/-/"
ATTEMPT = "platform-job-attempt-abc"
RESULT = {
    "name": "weights",
    "job": "platform-job-x",
    "workspace": "default",
    "project": None,
    "created_at": "2026-01-01T00:00:00.000000Z",
    "updated_at": "2026-01-01T00:00:00.000000Z",
    "artifact_url": f"default/job-fileset-moth#results/{ATTEMPT}/weights",
    "artifact_storage_type": "fileset",
    "download_url": None,
    "attempt_id": ATTEMPT,
    "step": None,
    "original_name": None,
}
JOB = {
    "name": "moth",
    "workspace": "default",
    "attempt_id": ATTEMPT,
    "fileset": "job-fileset-moth",
    "output_location": None,
}


def results(nemo: Nemo, server: Scripted, *words: str) -> Ran:
    return nemo("--base-url", server.url, "jobs", "results", *words)


def test_list_get_and_create_ask_and_show(nemo: Nemo) -> None:
    with scripted(Reply(body={"data": [RESULT]})) as server:
        ran = results(nemo, server, "list", "moth", "--sort", "-updated_at", "--attempt-id", "0", "-f", "csv")
        assert (ran.code, ran.out) == (
            0,
            "name,workspace,created_at\nweights,default,2026-01-01T00:00:00.000000Z\n",
        )
        assert server.targets == [f"GET {BASE}/results?sort=-updated_at&attempt_id=0"]
        assert json.loads(results(nemo, server, "list", "moth").out) == {"data": [RESULT]}
        assert (
            results(nemo, server, "list", "moth", "-c", "name,step", "-f", "csv").out
            == "name,step\nweights,\n"
        )
    with scripted(Reply(body=RESULT)) as server:
        ran = results(nemo, server, "get", "weights", "--job", "moth", "--attempt-id", "current")
        assert (ran.code, json.loads(ran.out)) == (0, RESULT)
        url = RESULT["artifact_url"]
        given = ("--artifact-storage-type", "fileset", "--artifact-url", str(url))
        assert results(nemo, server, "create", "weights", "--job", "moth", *given).code == 0
        text = json.dumps({"artifact_url": url, "artifact_storage_type": "fileset", "attempt_id": ATTEMPT})
        assert results(nemo, server, "create", "weights", "--job", "moth", "--input-data", text).code == 0
        assert server.targets == [
            f"GET {BASE}/results/weights?attempt_id=current",
            f"POST {BASE}/results/weights",
            f"POST {BASE}/results/weights",
        ]
        assert server.seen[1].json == {"artifact_url": url, "artifact_storage_type": "fileset"}
        assert server.seen[2].json["attempt_id"] == ATTEMPT


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("get", "weights"), "--job"),
        (("download", "weights", "--job", "moth"), "--output-file"),
        (("create", "weights", "--job", "moth"), "artifact_url: required, but missing"),
        (
            ("create", "weights", "--job", "moth", "--artifact-url", "a#b", "--artifact-storage-type", "s3"),
            "s3",
        ),
        (
            ("create", "weights", "--job", "moth", "--input-data", '{"artefact_url": "x"}'),
            "artefact_url: unknown",
        ),
        (("list", "moth", "--sort", "name"), "--sort"),
        (("list", "moth", "--attempt-id", "last"), "current"),
        (("list", ""), "empty"),
        (("upload", "weights", "/no/such/file", "--job", "moth"), "there is no such file or folder"),
        (("upload", "Bad Name", "/etc/hostname", "--job", "moth"), "can't be the name of a result"),
    ],
)
def test_what_can_not_be_sent_is_told_before_anything_is(
    nemo: Nemo, words: tuple[str, ...], says: str
) -> None:
    with scripted(Reply(body={})) as server:
        ran = results(nemo, server, *words)
        assert ran.code == 2
        assert says in ran.err
        assert server.targets == []


def test_a_download_goes_to_the_file_a_folder_or_standard_output(nemo: Nemo, tmp_path: Path) -> None:
    content = bytes(range(256)) * 100
    headers = {
        "content-disposition": 'attachment; filename="../My File"',
        "content-type": "application/octet-stream",
    }
    with scripted(Reply(body=content, headers=headers)) as server:
        target = tmp_path / "weights"
        ran = results(nemo, server, "download", "weights", "--job", "moth", "-o", str(target))
        assert (ran.code, ran.out) == (0, "")
        assert ran.err == f"downloaded 'weights' to {target}\n"
        assert target.read_bytes() == content
        ran = results(nemo, server, "download", "weights", "--job", "moth", "-o", str(tmp_path))
        assert (tmp_path / "My File").read_bytes() == content
        assert server.targets == [f"GET {BASE}/results/weights/download"] * 2
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["My File", "weights"]


def test_c034_a_cut_download_is_an_error_and_leaves_what_was_there(nemo: Nemo, tmp_path: Path) -> None:
    target = tmp_path / "weights"
    target.write_text("old")
    with scripted(Reply(body=b"x" * 100_000, cut=40_000)) as server:
        ran = results(nemo, server, "download", "weights", "--job", "moth", "-o", str(target))
        assert ran.code == 3
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["weights"]


def test_a_download_that_is_refused_or_can_not_be_written_leaves_nothing(nemo: Nemo, tmp_path: Path) -> None:
    with scripted(Reply(404, {"detail": "no result"})) as server:
        ran = results(nemo, server, "download", "weights", "--job", "moth", "-o", str(tmp_path / "weights"))
        assert (ran.code, ran.err) == (3, "error: not found (404): no result\n")
    with scripted(Reply(body=b"x")) as server:
        ran = results(nemo, server, "download", "weights", "--job", "moth", "-o", str(tmp_path / "no" / "w"))
        assert ran.code == 1
        assert "can't be written: No such file or directory" in ran.err
    assert [path for path in tmp_path.iterdir() if path.is_file()] == []


def upload_script(existing: Mapping[str, object] | None = None) -> Callable[[Seen], Reply]:
    def answer(seen: Seen) -> Reply:
        path = seen.target.partition("?")[0]
        if seen.method == "PUT":
            return Reply(body={"path": path, "size": len(seen.body)})
        if path == BASE:
            return Reply(body=JOB)
        if existing is not None:
            return (
                Reply(409, {"detail": "taken"}, {"x-should-retry": "false"})
                if seen.method == "POST"
                else Reply(body=existing)
            )
        return Reply(201, {**RESULT, "artifact_url": seen.json["artifact_url"]})

    return answer


def test_an_upload_puts_the_files_first_and_then_posts(nemo: Nemo, tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "b").write_text("bb")
    (folder / "a").write_text("aa")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "deep" / "up").symlink_to("..")
    with scripted(upload_script()) as server:
        ran = results(nemo, server, "upload", "weights", str(folder), "--job", "moth")
        assert (ran.code, ran.err) == (0, f"2 links and special files in {folder} were left out\n")
        place = f"results/{ATTEMPT}/weights"
        assert server.targets == [
            f"GET {BASE}", f"PUT {FILES}{place}/a", f"PUT {FILES}{place}/deep/b",
            f"POST {BASE}/results/weights",
        ]  # fmt: skip
        assert server.seen[3].json == {
            "artifact_url": f"default/job-fileset-moth#{place}/",
            "artifact_storage_type": "fileset",
            "attempt_id": ATTEMPT,
        }  # fmt: skip
        assert [seen.body for seen in server.seen[1:3]] == [b"aa", b"bb"]


def test_an_upload_to_a_name_that_means_something_else_is_an_error(nemo: Nemo, tmp_path: Path) -> None:
    file = tmp_path / "w"
    file.write_text("x")
    other = {**RESULT, "artifact_url": "default/job-fileset-moth#collected/elsewhere/weights"}
    with scripted(upload_script(other)) as server:
        ran = results(nemo, server, "upload", "weights", str(file), "--job", "moth")
        assert ran.code == 3
        assert "has a result 'weights' already, which is kept: default/job-fileset-moth#collected" in ran.err
        assert server.targets[-1] == f"DELETE {FILES}results/{ATTEMPT}/weights"
    with scripted(upload_script(RESULT)) as server:
        assert results(nemo, server, "upload", "weights", str(file), "--job", "moth").code == 0


def test_an_empty_folder_is_told_before_anything_is_sent(nemo: Nemo, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    with scripted(upload_script()) as server:
        ran = results(nemo, server, "upload", "weights", str(folder), "--job", "moth")
        assert (ran.code, server.targets) == (2, [])
        assert "there is no file in this folder" in ran.err


def test_code_prints_the_python_for_it(nemo: Nemo) -> None:
    with scripted(Reply(body={})) as server:
        out = results(nemo, server, "download", "weights", "--job", "moth", "-o", "x", "-f", "code").out
        assert "client.download_job_result('weights', job='moth')" in out
        assert server.targets == []
