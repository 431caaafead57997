"""Which machine this is."""

import os
import secrets
from pathlib import Path

from nemo_jobs.backends.keeper_process import boot_id

__all__ = ["boot_id", "host_identity"]

_MACHINE_IDS = ("/etc/machine-id", "/var/lib/dbus/machine-id")


def host_identity(data_dir: Path) -> str:
    """The name of this host for handles: the machine's own, else one kept in the data directory."""
    for path in _MACHINE_IDS:
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if len(text) == 32:
            return text
    own = data_dir / "host-id"
    try:
        file = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return own.read_text().strip()
    with os.fdopen(file, "w") as stream:
        stream.write(text := secrets.token_hex(16))
    return text
