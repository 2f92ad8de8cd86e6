"""JSON Schemas of what goes in and out, from the tables that the service itself works by."""

from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter

from segops_service import problems
from segops_service.operations import OPERATIONS, WANTS, Form, Layout, Operation, spell
from segops_service.snapshot import CacheSnapshot, DeviceSnapshot

Schema = dict[str, Any]


def _record(**properties: Schema) -> Schema:
    """Describe an object that has these properties, all of them, and no others."""
    return {
        "type": "object",
        "required": [*properties],
        "additionalProperties": False,
        "properties": properties,
    }


def _list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _map_of(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


_NULL: Schema = {"type": "null"}
_READY: Schema = {"type": "boolean", "description": "Whether requests are computed now."}
_STRING_OR_NULL: Schema = {"type": ["string", "null"]}

_OPTIONS: dict[str, Schema] = {
    "idx": {
        "type": "array",
        "items": {"type": "integer"},
        "description": "Segment id of each row, (N,).",
    },
    "num_segments": {"type": "integer", "minimum": 0, "description": "S."},
    "indices_are_sorted": {
        "type": "boolean",
        "default": False,
        "description": "A promise, which is checked, that allows a faster path.",
    },
    "out_of_range": {
        "type": "string",
        "enum": ["error", "drop"],
        "default": "error",
        "description": "Whether an id outside [0, S) is refused or its row left out.",
    },
    "dtype": {
        "type": "string",
        "enum": ["float32", "float64"],
        "default": "float32",
        "description": "Type of all arrays; in JSON only, as msgpack arrays have one.",
    },
    "want": {
        "type": "array",
        "items": {"type": "string", "enum": list(WANTS)},
        "minItems": 1,
        "default": ["value"],
    },
}

_PROBLEM: Schema = {
    "type": "object",
    "description": "A problem document as RFC 9457 has it.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "examples": [problems.INVALID_ARGUMENT.type]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "field": {"type": "string", "description": "Dotted path of the field at fault."},
        "position": {"type": "integer", "description": "First row at fault in that field."},
    },
}

_HEALTH = _record(status={"type": "string", "enum": ["live", "ready"]})

_COUNT: Schema = {"type": "integer", "minimum": 0}
_STATUS = _record(
    ready=_READY,
    obstacle={**_STRING_OR_NULL, "description": "Why not."},
    queue=_record(
        requests={**_COUNT, "description": "Requests under way."},
        max_requests={**_COUNT, "description": "More are refused."},
        bytes={**_COUNT, "description": "Bytes of their bodies and answers."},
        max_bytes={**_COUNT, "description": "More are refused."},
        arriving={**_COUNT, "description": "Requests whose body is not there yet."},
        waiting={**_COUNT, "description": "Requests that wait for a device."},
        refused={**_COUNT, "description": "Requests turned away since the start."},
    ),
    in_flight={**_COUNT, "description": "Requests that the devices were given."},
    cache=TypeAdapter(CacheSnapshot).json_schema(),
    devices=_list_of(TypeAdapter(DeviceSnapshot).json_schema()),
)

_METADATA = _record(
    versions={
        **_map_of(_STRING_OR_NULL),
        "description": "Version of each distribution; null where it is not installed.",
    },
    requested_platform={"type": "string", "description": "As SEGOPS_PLATFORM says."},
    platform={**_STRING_OR_NULL, "description": "Null until a device is set up."},
    devices=_list_of(
        _record(id={"type": "integer"}, kind={"type": "string"}, platform={"type": "string"})
    ),
    ready=_READY,
    limits=_map_of(_COUNT),
    ops=_map_of(
        _record(
            summary={"type": "string"},
            operands=_list_of({"type": "string"}),
            forms={
                **_list_of(_map_of({"type": "string"})),
                "description": "Shapes of the operands and of the value that go together.",
            },
        )
    ),
)


def reference(name: str) -> Schema:
    """Refer to a shared schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def request_name(op: str) -> str:
    """Name of the schema of a request's JSON body."""
    return f"{op}_request"


def answer_name(op: str) -> str:
    """Name of the schema of an answer in JSON."""
    return f"{op}_answer"


def schemas() -> dict[str, Schema]:
    """All shared schemas by name."""
    layouts = {
        layout: None
        for operation in OPERATIONS.values()
        for form in operation.forms
        for layout in (*form.operands.values(), form.value)
    }
    return {
        **{request_name(op): _request(operation) for op, operation in OPERATIONS.items()},
        **{answer_name(op): _answer(operation) for op, operation in OPERATIONS.items()},
        **{_array_name(layout): _array(layout) for layout in layouts},
        "msgpack": {
            "type": "string",
            "format": "binary",
            "description": "The same map in msgpack, its arrays in the layout of msgpack-numpy.",
        },
        "problem": _PROBLEM,
        "health": _HEALTH,
        "metadata": _METADATA,
        "status": _STATUS,
    }


def problem(kinds: Iterable[problems.Problem]) -> Schema:
    """Describe a problem document of one of these kinds."""
    return {
        **reference("problem"),
        "properties": {
            "type": {"enum": [kind.type for kind in kinds]},
            "status": {"enum": sorted({kind.status for kind in kinds})},
        },
    }


def _request(operation: Operation) -> Schema:
    return {
        "type": "object",
        "required": [*operation.operands, "idx", "num_segments"],
        "additionalProperties": False,
        "properties": {**_operands(operation.forms), **_OPTIONS, **_directions(operation.forms)},
    }


def _directions(forms: tuple[Form, ...]) -> dict[str, Schema]:
    return {
        "cotangent": {
            "anyOf": [*_values(forms), _NULL],
            "description": "g of vjp and hvp, in the shape of the value; ones if left out.",
        },
        "tangents": {
            "type": ["object", "null"],
            "additionalProperties": False,
            "properties": _operands(forms),
            "description": "t of jvp and hvp by operand; those left out are zero.",
        },
    }


def _answer(operation: Operation) -> Schema:
    value = _any_of(_values(operation.forms))
    gradients = _record(**_operands(operation.forms))
    return {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": False,
        "properties": {"value": value, "vjp": gradients, "jvp": value, "hvp": gradients},
    }


def _operands(forms: tuple[Form, ...]) -> dict[str, Schema]:
    return {
        name: _any_of(reference(_array_name(form.operands[name])) for form in forms)
        for name in forms[0].operands
    }


def _values(forms: tuple[Form, ...]) -> list[Schema]:
    return [reference(_array_name(form.value)) for form in forms]


def _any_of(choices: Iterable[Schema]) -> Schema:
    alternatives = list(choices)
    return alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}


def _array_name(layout: Layout) -> str:
    per = {"N": "row", "S": "segment"}[str(layout[0])]
    return f"{per}_{('scalars', 'vectors', 'matrices')[len(layout) - 1]}"


def _array(layout: Layout) -> Schema:
    schema: Schema = {"type": "number"}
    for size in reversed(layout):
        bounds = {"minItems": size, "maxItems": size} if isinstance(size, int) else {}
        schema = {"type": "array", "items": schema, **bounds}
    return {**schema, "description": spell(layout)}
