"""What is wrong with a configuration, each thing as one line that says how to put it right."""

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Sequence

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from nemo_jobs.config_environment import shown
from nemo_jobs.config_model import Settings
from nemo_jobs.config_shape import Model, field_at, section_at, sections_below, shape_of, tags
from nemo_jobs.config_tree import Entry, Place, Unclear, find
from nemo_jobs.config_yaml import reading

#: Sections of the family's other services in a shared file.
OTHER_SECTIONS = frozenset(
    [
        "entities",
        "models",
        "secrets",
        "studio",
        "inference",
        "inference_gateway",
        "guardrails",
        "evaluator",
        "evaluation",
        "customizer",
        "customization",
        "agents",
        "intake",
        "datasets",
        "data_store",
        "data_designer",
        "deployments",
        "deployment_management",
        "projects",
        "workspaces",
        "audit",
        "auditor",
        "safe_synthesizer",
        "telemetry",
        "plugins",
        "gateway",
        "controllers",
        "core",
    ]
)
_OUR_SECTIONS = ("platform", "jobs", "service", "database", "files", "auth")
#: Sections that this service shares with another one of the family, whose keys are left alone.
_SHARED_SECTIONS = ("files", "auth")
#: Of these a key that looks like a misspelt one of ours is refused: `auth.enabeld` must not leave
#: the doors open.
_STRICT_SECTIONS = ("auth",)
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
    "greater_than": ("more than", "gt"),
}

_NAMED = {
    **dict.fromkeys(
        ("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "must be a whole number"
    ),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "must be a mapping of keys"),
    "list_type": "must be a list",
    "string_too_short": "must not be empty",
}
_SECRET = re.compile("pas+w|secret|token|credential|key$", re.IGNORECASE)
#: What a volume of the engine's local driver really is.
_DEVICE = re.compile(r"additional_volume_mounts\[\d+\]\.options\..*\bdevice$", re.IGNORECASE)
#: Our own kinds of errors whose sentence ends best with the value.
_WITH_VALUE = ("url", "gpu_ids")


def unknown_sections(root: Entry, problems: list[str], warnings: list[str]) -> None:
    """Take out what is not ours: other services' sections with a warning, mistakes as problems."""
    sections = root.value if isinstance(root.value, dict) else {}
    for name in [name for name in sections if name not in _OUR_SECTIONS]:
        entry = sections.pop(name)
        wrong = _misplaced(Settings, name) or _similar(name, _OUR_SECTIONS)
        foreign = name in OTHER_SECTIONS or (isinstance(entry.value, dict) and not wrong)
        if foreign or name.startswith("x-"):
            if not name.startswith("x-"):
                warnings.append(f"{entry.where}: {name}: is no section of this service and is ignored")
            continue
        problems.append(
            f"{entry.where}: {name}: unknown section, set to {_unknown(Place(name, entry, True))}"
            f"{wrong or '; sections: ' + ', '.join(_OUR_SECTIONS)}"
        )
    for name in _SHARED_SECTIONS:
        if name in sections:
            doubtful = problems if name in _STRICT_SECTIONS else warnings
            _foreign_keys(sections[name], name, field_at((name,)), doubtful, warnings)


def _foreign_keys(
    entry: Entry, path: str, field: FieldInfo, doubtful: list[str], warnings: list[str]
) -> None:
    """Take out the keys of a shared section that are another service's, with a warning each;
    those that may be misspelt ones of ours are told as `doubtful`."""
    shape = shape_of(field.annotation)
    if shape.kind != "section" or not isinstance(entry.value, dict):
        return
    known = shape.models[0][1].model_fields
    for key in list(entry.value):
        below = entry.value[key]
        if key in known:
            _foreign_keys(below, f"{path}.{key}", known[key], doubtful, warnings)
        else:
            del entry.value[key]
            near = _similar(key, known)
            told = doubtful if near else warnings
            ignored = " and is ignored" if told is warnings else ""
            told.append(f"{below.where}: {path}.{key}: is no key of this service{ignored}{near}")


def repeated_profiles(root: Entry, problems: list[str]) -> None:
    """Two entries of `jobs.executors` with the same provider and profile."""
    jobs = root.child("jobs")
    executors = jobs.child("executors") if jobs else None
    seen: dict[tuple[str, str], tuple[int, Entry]] = {}
    for index, entry in enumerate(executors.value if executors and isinstance(executors.value, list) else ()):
        if not isinstance(entry.value, dict):
            continue
        default = "subprocess" if _text(entry, "backend") == "subprocess" else "cpu"
        key = (_text(entry, "provider") or default, _text(entry, "profile") or "default")
        if key in seen:
            first, other = seen[key]
            problems.append(
                f"{entry.where}: jobs.executors[{index}]: profile {key[0]}/{key[1]} is there twice, first "
                f"at {other.where} (jobs.executors[{first}]); provider and profile must be unique together"
            )
        else:
            seen[key] = (index, entry)


def _text(entry: Entry, key: str) -> str:
    child = entry.child(key)
    return child.value if child and isinstance(child.value, str) else ""


def unclear_values(root: Entry, problems: list[str]) -> None:
    """Values that no field takes as they are, also where a field takes anything."""
    for path, entry in _leaves(root, ""):
        value = entry.value
        if isinstance(value, Unclear):
            number = ", and a number in plain decimal digits" if "number" in value.reading else ""
            problems.append(
                f"{entry.where}: {path}: {value.text} is read as {value.reading}; "
                f'write text in quotes: "{value.text}"{number}'
            )
        elif isinstance(value, float) and not math.isfinite(value):
            problems.append(f"{entry.where}: {path}: {entry.text} is not a finite number")


def host_mounts(root: Entry, warnings: list[str]) -> None:
    """Volumes of Docker profiles that are places of the host: a job can do there what it likes."""
    for path, entry in _leaves(root, ""):
        if _DEVICE.search(path) and isinstance(entry.value, str) and entry.value.startswith("/"):
            rules = "; who can use the socket of an engine rules the host" if ".sock" in entry.value else ""
            warnings.append(
                f"{entry.where}: {path}: {shown(entry.text)} is a place of the host that every job of the "
                f"profile can then read and change{rules}"
            )


def _leaves(entry: Entry, path: str) -> Iterator[tuple[str, Entry]]:
    if isinstance(entry.value, dict):
        for key, below in entry.value.items():
            yield from _leaves(below, f"{path}.{key}" if path else key)
    elif isinstance(entry.value, list):
        for index, below in enumerate(entry.value):
            yield from _leaves(below, f"{path}[{index}]")
    else:
        yield path, entry


def describe(error: ValidationError, root: Entry) -> list[str]:
    """One line for each error of the model, at the place in the file where it comes from."""
    lines = []
    for item in error.errors(include_url=False, include_input=False):
        base = [part for part in item["loc"] if part != "[key]"]
        for below in item.get("ctx", {}).get("places", [[]]):
            place = find(root, [*base, *below], tags())
            if not (place.complete and isinstance(place.entry.value, Unclear)):  # `unclear_values` said it
                lines.append(f"{place.entry.where}: {place.path}: {_sentence(item, place, root)}")
    return lines


def _sentence(item: ErrorDetails, place: Place, root: Entry) -> str:
    kind, context = item["type"], item.get("ctx", {})
    value = place.entry.value
    if kind == "extra_forbidden":
        return f"unknown key, set to {_unknown(place)}" + _suggestion(item["loc"], root)
    if kind == "missing":
        return "is missing"
    if kind == "union_tag_not_found":
        return f"backend is missing; one of: {', '.join(tags())}"
    if kind == "union_tag_invalid":
        backend = _text(place.entry, "backend")
        return f"backend '{backend}' is not known; one of: {', '.join(tags())}{_similar(backend, tags())}"
    if kind == "string_type":
        return _not_text(place.entry)
    if kind == "literal_error":
        allowed = str(context.get("expected", ""))
        options = [option.strip("' ") for option in allowed.replace(" or ", ", ").split(", ")]
        return f"must be {allowed}, not {_value(place.entry)}{_similar(str(value), options)}"
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return f"must be {words} {context[key]}, not {_value(place.entry)}"
    if kind in _NAMED:
        return f"{_NAMED[kind]}, not {_value(place.entry)}"
    message = item["msg"].removeprefix("Value error, ")
    return f"{message}, not {_value(place.entry)}" if kind in _WITH_VALUE and place.entry.text else message


def _not_text(entry: Entry) -> str:
    value = entry.value
    if isinstance(value, dict | list):
        return f"must be text, not {reading(value)}"
    if not entry.text:
        return 'must be text, and nothing is written; write "" for an empty one'
    return f'must be text, and {entry.text} is read as {reading(value)}; write it in quotes: "{entry.text}"'


def _value(entry: Entry) -> str:
    if isinstance(entry.value, dict | list) or entry.value is None:
        return reading(entry.value)
    return shown(entry.text)


def _unknown(place: Place) -> str:
    """The value of a key that is not known, unless it may be a password whose name is misspelt."""
    return "a value not shown here" if _SECRET.search(place.path) else _value(place.entry)


def _suggestion(location: Sequence[str | int], root: Entry) -> str:
    """For an unknown key: the key that was meant, or the place where it belongs."""
    name = str(location[-1])
    model = section_at(location[:-1])
    if model is None:
        return ""
    known = f"; known keys: {', '.join(model.model_fields)}"
    near = _similar(name, model.model_fields)
    place = _misplaced(model, name) or _above(location[:-1], name, root)
    return place or near or _misplaced(Settings, name) or known


def _misplaced(model: Model, name: str) -> str:
    """Where below `model` the key exists, word for word."""
    for path, below in sections_below(model):
        if name in below.model_fields and not path.startswith("host"):
            return f"; it belongs below {path} ({path}.{name})"
    return ""


def _above(location: Sequence[str | int], name: str, root: Entry) -> str:
    for cut in range(len(location) - 1, -1, -1):
        outer = section_at(location[:cut])
        if outer is not None and name in outer.model_fields:
            return f"; it belongs in {find(root, location[:cut], tags()).path or 'the file itself'}"
    return ""


def _similar(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""
