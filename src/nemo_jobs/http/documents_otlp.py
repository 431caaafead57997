"""Models of what OTLP requests and answers are, for the API document only."""

from typing import Any

from pydantic import BaseModel, Field, TypeAdapter
from pydantic.alias_generators import to_camel

from nemo_jobs.domain.spec import Json
from nemo_jobs.http.otlp import OtlpIngestQuery, OtlpLogQuery


class _Otlp(BaseModel):
    model_config = {"alias_generator": to_camel}


class OtlpValue(_Otlp):
    """One of these."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | str | None = None
    double_value: float | None = None
    bytes_value: str | None = None
    array_value: Json | None = None
    kvlist_value: Json | None = None


class OtlpAttribute(_Otlp):
    key: str
    value: OtlpValue | None = None


class OtlpResource(_Otlp):
    """Must have the attributes job, job_attempt, job_step and job_task."""

    attributes: list[OtlpAttribute] = Field(default_factory=list)


class OtlpRecord(_Otlp):
    time_unix_nano: str | int = 0
    observed_time_unix_nano: str | int = 0
    severity_number: int = Field(0, ge=0, le=24)
    severity_text: str = ""
    body: OtlpValue | None = None
    attributes: list[OtlpAttribute] = Field(default_factory=list)


class OtlpScopeLogs(_Otlp):
    log_records: list[OtlpRecord] = Field(default_factory=list)


class OtlpResourceLogs(_Otlp):
    resource: OtlpResource | None = None
    scope_logs: list[OtlpScopeLogs] = Field(default_factory=list)


class OtlpRequest(_Otlp):
    resource_logs: list[OtlpResourceLogs] = Field(default_factory=list)


class OtlpPartialSuccess(_Otlp):
    rejected_log_records: int
    error_message: str


class OtlpAnswer(_Otlp):
    partial_success: OtlpPartialSuccess | None


class OtlpLogEntry(BaseModel):
    """A line, and what else its record said if it came as one."""

    timestamp: str
    job: str
    job_step: str
    job_task: str
    message: str
    time_unix_nano: str = ""
    severity_number: int = 0
    severity_text: str = ""
    attributes: dict[str, Any] = Field(default_factory=dict)


class OtlpLogPage(BaseModel):
    data: list[OtlpLogEntry]
    total: int
    next_page: str | None
    prev_page: str | None


MODELS: dict[str, TypeAdapter[Any]] = {
    model.__name__: TypeAdapter(model)
    for model in (OtlpIngestQuery, OtlpLogQuery, OtlpRequest, OtlpAnswer, OtlpLogPage)
}
