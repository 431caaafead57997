"""Print the iris job as JSON, with the place of the scripts on this machine filled in.

python examples/iris/job.py | nemo jobs create iris --input-file - --watch
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def job() -> dict[str, object]:
    storage = [{"name": "NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH", "value": "/var/run/scratch/job"}]

    def step(name: str, config: dict[str, float]) -> dict[str, object]:
        command = [sys.executable, str(HERE / f"{name}.py")]
        executor = {"provider": "subprocess", "command": command}
        return {"name": name, "executor": executor, "environment": storage, "config": config}

    return {
        "source": "examples",
        "description": "tells three kinds of iris apart",
        "spec": {"data": "iris", "model": "softmax"},
        "platform_spec": {
            "steps": [
                step("prepare", {"test_share": 0.2, "seed": 1936}),
                step("fit", {"epochs": 50, "sweeps": 20, "rate": 0.5}),
            ]
        },
    }


if __name__ == "__main__":
    print(json.dumps(job(), indent=2))
