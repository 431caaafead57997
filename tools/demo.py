"""Run the iris job on a service of its own: start, send, follow, look, stop.

`make demo` calls this with the Python of an environment that has the product installed.
"""

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEMO = Path(sys.executable).with_name("nemo")
READY = re.compile(r"nemo-jobs is ready at (\S+)")
PATIENCE = 30.0


class DemoFailed(Exception):
    """Something did not go as it should; the message says what."""


def main() -> int:
    home = Path(tempfile.mkdtemp(prefix="nemo-demo-"))
    service = start(home)
    try:
        url = wait_until_ready(service, home)
        say(f"The service runs at {url}, its data is in {home}")
        show(url, home)
    except DemoFailed as error:
        print(f"\nThe demo failed: {error}\nThe service said:\n{log_of(home)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        stop(service)
    say("The service is stopped. All it wrote is still there:")
    rows(
        (f"{home}/data", "database with jobs and logs; exit codes; results"),
        (f"{home}/work", "working directories and storage of the jobs"),
        (f"{home}/iris.json", "the job as it was sent"),
        (f"{home}/model.json", "the model as it was downloaded"),
        (f"{home}/service.yaml", "the service's configuration"),
        (f"{home}/service.log", "what the service said"),
    )
    nemo = shlex.quote(os.path.relpath(NEMO))
    say("What to try next:")
    rows(
        (f"{nemo} services run --data-dir {home}/data --config {home}/service.yaml", ""),
        ("", "the same service again; then in another terminal:"),
        (f"{nemo} jobs get-logs iris", "the log is still there"),
        (f"{nemo} jobs run --follow -- echo hello", "any command as a job"),
        (f"rm -r {home}", "when done"),
    )
    return 0


def rows(*pairs: tuple[str, str]) -> None:
    """Lines of two columns; a long first one stands alone."""
    column = max(len(first) for first, second in pairs if second)
    for first, second in pairs:
        print(f"  {first.ljust(column)}{'  # ' if second else ''}{second}".rstrip())


def start(home: Path) -> "subprocess.Popen[bytes]":
    """A service with nothing of the caller's own configuration in it."""
    (home / "service.yaml").write_text(
        json.dumps(
            {
                "platform": {"runtime": "none"},
                "jobs": {"executor_defaults": {"subprocess": {"working_directory": str(home / "work")}}},
            }
        )
    )
    command = [str(NEMO), "services", "run", "--port", "0"]
    command += ["--data-dir", str(home / "data"), "--config", str(home / "service.yaml")]
    with (home / "service.log").open("wb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(home), cwd=ROOT
        )


def environment(home: Path) -> dict[str, str]:
    """The caller's environment without settings of the service and the command."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith(("NHX_", "NEMO_"))}
    return {**ours, "XDG_CONFIG_HOME": str(home / "config"), "PYTHONUNBUFFERED": "1"}


def wait_until_ready(service: "subprocess.Popen[bytes]", home: Path) -> str:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        match = READY.search(log_of(home))
        if match:
            return match[1]
        if service.poll() is not None:
            raise DemoFailed(f"the service ended with code {service.returncode}")
        time.sleep(0.05)
    raise DemoFailed(f"the service wasn't ready within {PATIENCE:g} s")


def log_of(home: Path) -> str:
    return (home / "service.log").read_text(errors="replace")


def show(url: str, home: Path) -> None:
    """Send the job and look at it, as a user would."""
    job_file = home / "iris.json"
    job_file.write_text(json.dumps(iris_job(), indent=2))
    say("Send a job of two steps: prepare the data, train a classifier")
    nemo(url, home, "jobs", "create", "iris", "--input-file", str(job_file), quiet=True)
    say("Follow its output until it ends")
    nemo(url, home, "jobs", "tail", "-f", "iris")
    say("Its states, steps and tasks, with the progress that it reported")
    nemo(url, home, "jobs", "get-status", "iris", "-f", "yaml")
    say("What it left: the model, from the directory of results")
    nemo(url, home, "jobs", "results", "list", "iris", "-f", "table")
    nemo(url, home, "jobs", "results", "download", "model.json", "--job", "iris", "-o", str(home))
    model = json.loads((home / "model.json").read_text())
    print(f"{len(model['weights'])} classes, accuracy {model['accuracy']:.1%}", flush=True)
    say("All jobs")
    nemo(url, home, "jobs", "list", "-f", "table")
    status = json.loads(nemo(url, home, "jobs", "get", "iris", quiet=True, echo=False))["status"]
    if status != "completed":
        raise DemoFailed(f"the job ended as {status}")


def iris_job() -> object:
    """The job as `examples/iris/job.py` prints it."""
    spec = importlib.util.spec_from_file_location("iris_job", ROOT / "examples" / "iris" / "job.py")
    if spec is None or spec.loader is None:
        raise DemoFailed("examples/iris/job.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.job()


def nemo(url: str, home: Path, *words: str, quiet: bool = False, echo: bool = True) -> str:
    """Run the command against the demo's service; its output is shown unless `quiet`."""
    if echo:
        print(f"$ nemo {shlex.join(words)}", flush=True)
    try:
        done = subprocess.run(
            [str(NEMO), *words],
            env={**environment(home), "NHX_BASE_URL": url},
            stdout=subprocess.PIPE if quiet else None,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DemoFailed(f"'nemo {shlex.join(words)}' took more than {PATIENCE:g} s") from error
    if done.returncode:
        raise DemoFailed(f"'nemo {shlex.join(words)}' ended with code {done.returncode}")
    return done.stdout or ""


def stop(service: "subprocess.Popen[bytes]") -> None:
    """End the service that this demo started, and nothing else."""
    if service.poll() is None:
        service.send_signal(signal.SIGTERM)
        try:
            service.wait(10)
        except subprocess.TimeoutExpired:
            service.kill()
            service.wait(10)


def say(text: str) -> None:
    bold = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(f"\n\x1b[1m{text}\x1b[0m" if bold else f"\n{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
