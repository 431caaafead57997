"""The body of a create request."""

from typing import Any

import pytest
from pydantic import ValidationError

from nemo_jobs.domain.spec import CreateJobRequest, JobSpec

Json = dict[str, Any]


def step(**changes: Any) -> Json:
    return {"name": "one-step", "executor": {"provider": "subprocess", "command": ["true"]}, **changes}


def body(**changes: Any) -> Json:
    return {"source": "tests", "spec": {}, "platform_spec": {"steps": [step()]}, **changes}


def errors(value: Json) -> list[tuple[str, tuple[Any, ...]]]:
    with pytest.raises(ValidationError) as caught:
        CreateJobRequest.model_validate(value)
    return [(item["type"], item["loc"]) for item in caught.value.errors()]


def error_text(value: Json) -> str:
    with pytest.raises(ValidationError) as caught:
        CreateJobRequest.model_validate(value)
    return " ".join(item["msg"] for item in caught.value.errors())


def test_the_stored_spec_has_every_default_of_the_wire() -> None:
    gpu = {
        "provider": "gpu",
        "profile": "big",
        "container": {"command": ["python", "-m", "fit"]},
        "resources": {"num_gpus": 2, "shm_size": " 4Gi "},
    }
    spec = JobSpec.model_validate({"steps": [step(), step(name="fit", executor=gpu)]})
    assert spec.model_dump(mode="json") == {
        "secrets": None,
        "steps": [
            {
                "name": "one-step",
                "environment": None,
                "config": {},
                "lifecycle": {"staleness_timeout_seconds": 0},
                "executor": {"provider": "subprocess", "profile": "default", "command": ["true"]},
            },
            {
                "name": "fit",
                "environment": None,
                "config": {},
                "lifecycle": {"staleness_timeout_seconds": 0},
                "executor": {
                    "provider": "gpu",
                    "profile": "big",
                    "container": {"image": None, "entrypoint": [], "command": ["python", "-m", "fit"]},
                    "resources": {
                        "requests": {"cpu": None, "memory": None},
                        "limits": {"cpu": None, "memory": None},
                        "num_nodes": 1,
                        "num_gpus": 2,
                        "shm_size": "4Gi",
                    },
                },
            },
        ],
    }


def test_a_steps_own_time_limit_is_shown_only_where_it_is_set() -> None:
    spec = JobSpec.model_validate({"steps": [step(lifecycle={"timeout_seconds": 30})]})
    assert spec.model_dump(mode="json")["steps"][0]["lifecycle"] == {
        "staleness_timeout_seconds": 0,
        "timeout_seconds": 30,
    }
    assert errors(body(platform_spec={"steps": [step(lifecycle={"timeout_seconds": 0})]})) == [
        ("greater_than", ("platform_spec", "steps", 0, "lifecycle", "timeout_seconds"))
    ]


def test_unknown_keys_are_ignored() -> None:
    spec = CreateJobRequest.model_validate(
        body(new=1, platform_spec={"steps": [step(later=True)], "more": {}})
    )
    assert "later" not in spec.platform_spec.model_dump(mode="json")["steps"][0]


def test_a_secrets_value_is_dropped_whatever_it_is() -> None:
    for value in ("hunter2", {"deep": "hunter2"}):
        spec = body(platform_spec={"steps": [step()], "secrets": [{"name": "key", "value": value}]})
        request = CreateJobRequest.model_validate(spec)
        assert request.platform_spec.model_dump(mode="json")["secrets"] == [
            {"name": "key", "value": None, "ref_id": None}
        ]


def test_an_empty_object_as_environment_is_an_empty_list() -> None:
    request = CreateJobRequest.model_validate(body(platform_spec={"steps": [step(environment={})]}))
    assert request.platform_spec.steps[0].environment == []


STEP = ("platform_spec", "steps", 0)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"executor": {}}, ("union_tag_not_found", (*STEP, "executor"))),
        ({"executor": {"provider": "tpu"}}, ("union_tag_invalid", (*STEP, "executor"))),
        ({"name": "Upper"}, ("string_pattern_mismatch", (*STEP, "name"))),
        (
            {"executor": {"provider": "subprocess", "command": []}},
            ("value_error", (*STEP, "executor", "subprocess")),
        ),
        ({"executor": {"provider": "cpu"}}, ("missing", (*STEP, "executor", "cpu", "container"))),
        ({"environment": [{"name": "X"}]}, ("value_error", (*STEP, "environment", 0))),
        (
            {"environment": [{"name": "X", "value": "1", "from_secret": {"name": "s"}}]},
            ("value_error", (*STEP, "environment", 0)),
        ),
        (
            {"environment": [{"name": "A=B", "value": "1"}]},
            ("value_error", (*STEP, "environment", 0, "name")),
        ),
        (
            {"environment": [{"name": "X", "value": "a\0b"}]},
            ("string_nul", (*STEP, "environment", 0, "value")),
        ),
        (
            {"executor": {"provider": "cpu", "container": {}, "resources": {"num_nodes": 0}}},
            ("greater_than_equal", (*STEP, "executor", "cpu", "resources", "num_nodes")),
        ),
        ({"config": {"rate": float("nan")}}, ("finite_number", (*STEP, "config"))),
    ],
)
def test_a_wrong_step_is_refused_at_the_place_of_the_error(wrong: Json, expected: tuple[str, Any]) -> None:
    assert errors(body(platform_spec={"steps": [step(**wrong)]})) == [expected]


def test_a_spec_without_steps_and_steps_with_one_name_are_refused() -> None:
    assert errors(body(platform_spec={"steps": []})) == [("value_error", ("platform_spec",))]
    assert errors(body(platform_spec={"steps": [step(), step()]})) == [("value_error", ("platform_spec",))]


@pytest.mark.parametrize("size", ["8Gi", "512M", "1.5G", ".5Gi", "+2e1Mi", "-1Gi"])
def test_shared_memory_sizes(size: str) -> None:
    executor = {"provider": "gpu", "container": {}, "resources": {"shm_size": size}}
    CreateJobRequest.model_validate(body(platform_spec={"steps": [step(executor=executor)]}))


@pytest.mark.parametrize("size", ["", "8", "8GB", "Gi", "1.Gi", "8 Gi", "8Ki", "\u0668Gi"])
def test_wrong_shared_memory_sizes(size: str) -> None:
    executor = {"provider": "gpu", "container": {}, "resources": {"shm_size": size}}
    assert "Mi, Gi, M or G" in error_text(body(platform_spec={"steps": [step(executor=executor)]}))


def test_a_name_leaves_room_for_its_fileset_unless_there_is_another() -> None:
    assert CreateJobRequest.model_validate(body(name="x" * 51)).name == "x" * 51
    text = error_text(body(name="x" * 52))
    assert "51" in text
    assert "job-fileset-" in text
    assert CreateJobRequest.model_validate(body(name="x" * 63, output_location="other")).name == "x" * 63
    assert errors(body(name="x" * 64, output_location="other")) == [("string_pattern_mismatch", ("name",))]


def test_c059_a_wrong_name_is_refused_with_the_rule() -> None:
    for name in ("a/b", "naïve", "..", "x" * 300, "Upper", "trailing ", "line\n"):
        assert "lower-case letter" in error_text(body(name=name))


@pytest.mark.parametrize("place", ["", "  ", "a#b", "a/b", "x" * 300, "Upper"])
def test_a_wrong_output_location_is_refused(place: str) -> None:
    assert errors(body(output_location=place)) == [("value_error", ("output_location",))]


def test_an_output_location_is_trimmed() -> None:
    assert CreateJobRequest.model_validate(body(output_location=" files ")).output_location == "files"


def test_text_that_no_database_holds_is_refused() -> None:
    assert errors(body(description="a\0b")) == [("string_nul", ("description",))]
    assert errors(body(spec={"deep": [{"x": "a\0b"}]})) == [("string_nul", ("spec",))]
    with pytest.raises(ValidationError):
        CreateJobRequest.model_validate_json('{"source":"x","spec":{"a":"\\ud800"}}')
