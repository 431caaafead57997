"""Values of attributes and bodies as what JSON can say."""

import base64
import math

from nemo_jobs.otlp.records import Value


def anything(value: Value) -> Value:
    """A scalar: bytes become base64, numbers that JSON can't write become text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
