"""First step: check the measurements and split them into two files in the job's storage.

Reads iris.csv next to this file: 150 flowers measured by Edgar Anderson, published by
R. A. Fisher, "The use of multiple measurements in taxonomic problems", Annals of Eugenics 7 (1936).
"""

import csv
import json
import os
import random
from pathlib import Path

SPECIES = ("setosa", "versicolor", "virginica")


def main() -> None:
    storage = Path(os.environ["NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH"])
    config = json.loads(Path(os.environ["NEMO_JOB_STEP_CONFIG_FILE_PATH"]).read_text())
    rows = read_rows(Path(__file__).with_name("iris.csv"))
    print(f"read {len(rows)} flowers of {len(SPECIES)} species")
    train, test = split(rows, config["test_share"], random.Random(config["seed"]))
    for name, part in (("train", train), ("test", test)):
        (storage / f"{name}.json").write_text(json.dumps(part))
        print(f"wrote {len(part)} flowers to {storage / name}.json")


def read_rows(path: Path) -> list[list[float]]:
    """Four measurements and the number of the species, per flower."""
    with path.open() as file:
        rows = [
            [*(float(row[key]) for key in list(row)[:4]), float(SPECIES.index(row["species"]))]
            for row in csv.DictReader(file)
        ]
    if len(rows) != 150:
        raise SystemExit(f"{path} has {len(rows)} rows, not 150")
    return rows


def split(
    rows: list[list[float]], test_share: float, chance: random.Random
) -> tuple[list[list[float]], list[list[float]]]:
    """Train and test rows; each species keeps its share in both."""
    train: list[list[float]] = []
    test: list[list[float]] = []
    for number in range(len(SPECIES)):
        flowers = [row for row in rows if row[4] == number]
        chance.shuffle(flowers)
        held_out = round(len(flowers) * test_share)
        test += flowers[:held_out]
        train += flowers[held_out:]
    chance.shuffle(train)
    return train, test


if __name__ == "__main__":
    main()
