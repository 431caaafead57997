"""Cases of security: what a job, a result or an archive can't do to the service and its host."""

import io
import socket
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nemo_jobs.domain.spec import JobSpec
from tests.cases.kit import create, script
from tests.e2e.service import JOBS, NEMO, Client, Json, Service, job

INTO = "cd $NEMO_JOB_RESULTS_PATH; "
SENTINEL = b"untouched"


def download(shared: Service, name: str, result: str, target: Path) -> None:
    command = [str(NEMO), "jobs", "results", "download", result, "--job", name, "-o", str(target)]
    environ = {**shared.environ, "NHX_BASE_URL": shared.url, "HOME": str(target.parent)}
    done = subprocess.run(command, env=environ, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def crafted(place: Path) -> bytes:
    """An archive whose members try every way out of the folder where it is unpacked."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name in ("../sentinel", str(place / "sentinel"), "way/sentinel", "a/../../sentinel"):
            if name.startswith("way"):
                way = tarfile.TarInfo("way")
                way.type, way.linkname = tarfile.SYMTYPE, ".."
                archive.addfile(way)
            member = tarfile.TarInfo(name)
            member.size = 4
            archive.addfile(member, io.BytesIO(b"evil"))
        zeros = tarfile.TarInfo("zeros")
        zeros.size = 64 << 20
        archive.addfile(zeros, io.BytesIO(bytes(zeros.size)))
    return made.getvalue()


def test_c082_a_crafted_archive_is_handed_on_as_it_is(
    client: Client, shared: Service, tmp_path: Path
) -> None:
    archive = crafted(tmp_path)
    (tmp_path / "evil.tar.gz").write_bytes(archive)
    (tmp_path / "sentinel").write_bytes(SENTINEL)
    script(client, "c082", INTO + f"cp {tmp_path}/evil.tar.gz . && mkdir d && cp evil.tar.gz d/")
    assert client.wait("c082")["status"] == "completed", client.messages("c082")
    (tmp_path / "out").mkdir()
    download(shared, "c082", "evil.tar.gz", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["evil.tar.gz"]
    # Nobody has unpacked it: neither its members nor its zeros are there.
    assert (tmp_path / "out" / "evil.tar.gz").read_bytes() == archive
    assert (tmp_path / "sentinel").read_bytes() == SENTINEL
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.tar.gz", "out", "sentinel"]


def test_c082_a_folder_comes_as_an_archive_that_even_a_careless_reader_can_unpack(
    client: Client, shared: Service, tmp_path: Path
) -> None:
    text = (
        "import os; os.chdir(os.environ['NEMO_JOB_RESULTS_PATH']); os.makedirs('d/...'); os.chdir('d'); "
        "[open(n, 'w').write('x') for n in ('..sentinel', '.../s', '..\\\\sentinel', 'a\\nb', 'C:')]; "
        "os.symlink('/etc', 'etc'); os.symlink('..', 'up'); os.symlink('../../sentinel', 'sentinel'); "
        "os.link('C:', 'hard')"
    )
    create(client, "c082-folder", ["python3", "-c", text])
    assert client.wait("c082-folder")["status"] == "completed", client.messages("c082-folder")
    (tmp_path / "sentinel").write_bytes(SENTINEL)
    (tmp_path / "out").mkdir()
    (tmp_path / "got").mkdir()
    # A link that waits under the name is replaced; what it leads to stays as it was.
    (tmp_path / "got" / "result-d.tar.gz").symlink_to(tmp_path / "sentinel")
    download(shared, "c082-folder", "result-d", tmp_path / "got" / "result-d.tar.gz")
    assert not (tmp_path / "got" / "result-d.tar.gz").is_symlink()
    with tarfile.open(tmp_path / "got" / "result-d.tar.gz") as archive:
        assert all(member.isfile() or member.isdir() for member in archive)
        archive.extractall(tmp_path / "out", filter="fully_trusted")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["d"]
    assert (tmp_path / "sentinel").read_bytes() == SENTINEL
    assert sorted(path.name for path in tmp_path.iterdir()) == ["got", "out", "sentinel"]
    found = [path for path in (tmp_path / "out" / "d").rglob("*") if path.is_file()]
    assert len(found) == 6
    assert all(path.read_text() == "x" for path in found)


#: What no job may ask for, by the names that Docker, Kubernetes and our own profiles give it.
WISHES: Json = {
    "privileged": True,
    "volumes": ["/:/host", "/var/run/docker.sock:/var/run/docker.sock"],
    "additional_volumes": [{"name": "wished", "host_path": {"path": "/"}}],
    "additional_volume_mounts": [{"volume_name": "/wished", "mount_path": "/host"}],
    "storage": {"volume_name": "/wished"},
    "hostPath": "/wished",
    "network_mode": "host",
    "host_network": True,
    "devices": ["/dev/wished"],
    "cap_add": ["ALL"],
    "security_context": {"privileged": True, "runAsUser": 0},
    "pod_security_context": {"runAsUser": 0},
    "working_directory": "/wished",
    "service_account_name": "wished",
    "env": {"WISHED": "1"},
    "config": {"working_directory": "/wished", "max_concurrent": 9},
}
FORBIDDEN = ("wished", "privileged", "docker.sock", "host_network", "/host")


def wishing(executor: Json) -> Json:
    """A spec with the wishes at every level. A step's own `config` is data for its task alone."""
    wished = {**WISHES, **executor, "resources": {**WISHES, "limits": {**WISHES, "cpu": "1"}}}
    if "container" in executor:
        wished["container"] = {**WISHES, **executor["container"]}
    step = {**WISHES, "name": "work", "executor": wished, "lifecycle": {**WISHES}}
    del step["config"]
    return {**WISHES, "steps": [step]}


def test_c091_a_job_gets_nothing_that_its_profile_does_not_give(client: Client) -> None:
    body = {**WISHES, **job("c091", ["true"])}
    body["platform_spec"] = wishing({"provider": "subprocess", "command": ["sh", "-c", "pwd; env"]})
    told = client.post(f"{JOBS}?dry_run=true", body)
    assert told.status == 200, told
    assert told.json["steps"][0]["manifest"], told
    made = client.post(JOBS, body)
    assert made.status == 201, made
    assert client.wait("c091")["status"] == "completed"
    printed = "\n".join(client.messages("c091"))
    assert "HOME=" in printed
    shown = client.get(f"{JOBS}/c091/steps").body
    for text in (told.body.decode(), made.body.decode(), shown.decode(), printed):
        assert not [word for word in FORBIDDEN if word in text.lower()], text


@pytest.mark.parametrize("provider", ["cpu", "gpu", "gpu_distributed"])
def test_c091_no_wish_of_a_container_is_kept(client: Client, provider: str) -> None:
    executor = {"provider": provider, "container": {"image": "wanted", "command": ["true"]}}
    kept = JobSpec.model_validate(wishing(executor)).model_dump_json()
    assert "wanted" in kept
    assert not [word for word in FORBIDDEN if word in kept.lower()], kept
    # Where nothing runs containers, the refusal does not repeat them either.
    refused = client.post(JOBS, {**job("c091-none", ["true"]), "platform_spec": wishing(executor)})
    assert refused.status == 422
    assert not [word for word in FORBIDDEN if word in refused.body.decode().lower()], refused


def test_c086_text_of_any_field_is_never_run_and_arrives_as_it_is(client: Client, shared: Service) -> None:
    proof = shared.root / "c086-pwned"
    texts = [
        f"x;touch {proof}",
        f"$(touch {proof})",
        f"`touch {proof}`",
        f"'; touch {proof}; '",
        "-v/:/h",
        "--privileged",
        "a\nb: c\n- d",
        "{{ 7 * 7 }}",
        "%s%n",
        "../../../etc",
    ]
    show = "import os, sys; sys.stdout.write(repr([os.environ['TEXT'], sys.argv[1]]))"
    for number, text in enumerate(texts):
        name = f"c086-{number}"
        body: dict[str, Any] = job(name, ["python3", "-c", show, text])
        step = body["platform_spec"]["steps"][0]
        step["environment"] = [{"name": "TEXT", "value": text}]
        body |= {"description": text, "source": text, "spec": {text: text}}
        body |= {"ownership": {"by": text}, "custom_fields": {"note": text}}
        assert client.post(JOBS, body).status == 201, text
        assert client.wait(name)["status"] == "completed"
        assert client.messages(name) == [repr([text, text])]
        for change in ({"provider": text}, {"profile": text}, {"provider": "cpu", "profile": text}):
            wrong = {**body, "name": f"{name}-wrong"}
            other = {**step, "executor": {**step["executor"], **change}}
            answer = client.post(JOBS, {**wrong, "platform_spec": {"steps": [other]}})
            assert answer.status == 422, (change, answer)
        program = f"{name}-program"
        create(client, program, [text])
        assert client.wait(program)["status"] == "error"
        result = {"artifact_url": f"job-fileset-{name}#{text}", "artifact_storage_type": "fileset"}
        client.post(f"{JOBS}/{name}/results/it", result)
        assert client.get(f"{JOBS}/{name}/results/it/download").status == 404
    assert not proof.exists()


@contextmanager
def watched() -> Iterator[tuple[int, list[bytes]]]:
    """A server of this host that keeps what it is asked, and sends everybody elsewhere."""
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    seen.append(connection.recv(4096))
                    connection.sendall(b"HTTP/1.1 302 Found\r\nlocation: file:///etc/passwd\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1], seen
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_c099_no_address_is_ever_asked(client: Client, shared: Service) -> None:
    create(client, "c099", ["true"])
    create(client, "c099-other", ["true"])
    client.wait("c099")
    client.wait("c099-other")
    with watched() as (port, seen):
        urls = [
            f"{scheme}{host}:{port}/{rest}"
            for scheme in ("http://", "https://", "ftp://", "s3://", "fileset://", "//", "")
            for host in (
                "127.0.0.1",
                "localhost",
                "2130706433",
                "0x7f.1",
                "[::ffff:127.0.0.1]",
                "x@127.0.0.1",
            )
            for rest in ("x", "x#y", "job-fileset-c099#y")
        ]
        urls += ["file:///etc/passwd", "file:///etc/passwd#x", "/etc/passwd", "c099/job-fileset-c099#../../x"]
        urls += ["job-fileset-c099-other#x", "default/job-fileset-c099-other#x"]
        for number, url in enumerate(urls):
            name = f"it-{number}"
            for kind in ("fileset", "url", "s3"):
                posting = {"artifact_url": url, "artifact_storage_type": kind}
                answer = client.post(f"{JOBS}/c099/results/{name}", posting)
                assert answer.status == 422, (url, kind, answer)
            assert client.get(f"{JOBS}/c099/results/{name}/download").status == 404
        assert client.get(f"{JOBS}/c099/results").json == {"data": []}
        # One that may be posted leads into the job's own fileset, whatever it looks like.
        posting = {
            "artifact_url": f"job-fileset-c099#http:127.0.0.1:{port}",
            "artifact_storage_type": "fileset",
        }
        client.post(f"{JOBS}/c099/results/own", posting)
        assert client.get(f"{JOBS}/c099/results/own/download").status == 404
        assert seen == []
        # The server would have seen it.
        with socket.create_connection(("127.0.0.1", port)) as probe:
            probe.sendall(b"hello")
            assert probe.recv(10)
        assert seen == [b"hello"]
