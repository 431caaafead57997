"""The example works by itself: the data are the published ones, the classifier learns."""

import csv
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

IRIS = Path(__file__).parents[2] / "examples" / "iris"


def step(
    name: str, storage: Path, config: dict[str, Any], **environ: str
) -> subprocess.CompletedProcess[str]:
    file = storage / f"{name}-config.json"
    file.write_text(json.dumps(config))
    return subprocess.run(
        [sys.executable, IRIS / f"{name}.py"],
        env={
            "PATH": os.environ["PATH"],
            "NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH": str(storage),
            "NEMO_JOB_RESULTS_PATH": str(storage),
            "NEMO_JOB_STEP_CONFIG_FILE_PATH": str(file),
            **environ,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def configs() -> dict[str, dict[str, Any]]:
    printed = subprocess.run(
        [sys.executable, IRIS / "job.py"], capture_output=True, text=True, check=True
    ).stdout
    return {item["name"]: item["config"] for item in json.loads(printed)["platform_spec"]["steps"]}


def test_the_measurements_have_the_published_means_and_deviations() -> None:
    species = defaultdict(list)
    with (IRIS / "iris.csv").open() as file:
        for row in csv.DictReader(file):
            species[row["species"]].append([float(value) for value in list(row.values())[:4]])
    assert {name: len(rows) for name, rows in species.items()} == dict.fromkeys(species, 50)
    found = {
        name: [
            (round(statistics.mean(column), 3), round(statistics.stdev(column), 2))
            for column in zip(*rows, strict=True)
        ]
        for name, rows in species.items()
    }
    assert found == {
        "setosa": [(5.006, 0.35), (3.428, 0.38), (1.462, 0.17), (0.246, 0.11)],
        "versicolor": [(5.936, 0.52), (2.77, 0.31), (4.26, 0.47), (1.326, 0.2)],
        "virginica": [(6.588, 0.64), (2.974, 0.32), (5.552, 0.55), (2.026, 0.27)],
    }


def test_two_steps_make_a_classifier_that_knows_unseen_flowers(tmp_path: Path) -> None:
    wanted = configs()
    assert "wrote 120 flowers" in step("prepare", tmp_path, wanted["prepare"]).stdout
    printed = step("fit", tmp_path, wanted["fit"]).stdout.splitlines()
    losses = [float(text.split()[-1]) for text in printed if text.startswith("epoch")]
    assert len(losses) == wanted["fit"]["epochs"]
    assert losses[-1] < 0.1 < losses[0]
    assert float(printed[-2].split()[1].rstrip("%:")) >= 90
    model = json.loads((tmp_path / "model.json").read_text())
    assert len(model["weights"]) == 3
    assert model["accuracy"] >= 0.9


def test_nobody_who_listens_does_not_stop_the_work(tmp_path: Path) -> None:
    step("prepare", tmp_path, {"test_share": 0.2, "seed": 1})
    ran = step(
        "fit",
        tmp_path,
        {"epochs": 3, "sweeps": 1, "rate": 0.5},
        NHX_JOBS_URL="http://127.0.0.1:9",
        NEMO_JOB_ID="iris",
    )
    assert "accuracy" in ran.stdout
    assert ran.stderr.count("\n") == 1
    assert ran.stderr.startswith("progress can't be reported, going on without")
