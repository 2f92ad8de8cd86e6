"""OpenAPI parts that the framework cannot see, since bodies are decoded by hand."""

from collections.abc import Iterable, Mapping
from typing import Any

from segops_client.wire import MEDIA_TYPE as MSGPACK
from segops_service import problems
from segops_service.body import JSON_TYPE
from segops_service.operations import OPERATIONS, WANTS, Layout, Operation, spell

Schema = dict[str, Any]

_BINARY: Schema = {
    "type": "string",
    "format": "binary",
    "description": "The same map in msgpack, its arrays in the layout of msgpack-numpy.",
}
_PROBLEM: Schema = {
    "type": "object",
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
_X = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]
_ONES = [[1.0, 1.0, 1.0]] * 3
_IDENTITY = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
_OPERAND_EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "segmented_sum": {"x": _X},
    "segmented_mean": {"x": _X},
    "segmented_dot": {"x": _X, "y": _ONES},
    "segmented_rms_norm": {"x": _X},
    "segmented_mul": {"x": _X, "y": [2.0, 3.0]},
    "segmented_matvec": {"v": _X, "m": [_IDENTITY, _IDENTITY]},
}


def example(name: str) -> dict[str, Any]:
    """JSON body that works as it stands, for operation ``name``."""
    operands = _OPERAND_EXAMPLES[name]
    first = OPERATIONS[name].operands[0]
    return {
        **operands,
        "idx": [0, 0, 1],
        "num_segments": 2,
        "want": ["value", "vjp", "jvp"],
        "tangents": {first: _ONES},
    }


def request_body(name: str, operation: Operation) -> Schema:
    """OpenAPI request body of an operation."""
    return {
        "required": True,
        "content": {
            JSON_TYPE: {"schema": _body_schema(operation), "example": example(name)},
            MSGPACK: {"schema": _BINARY},
        },
    }


def responses(operation: Operation) -> dict[int | str, Schema]:
    """OpenAPI responses of an operation: its answer, and a document for each problem."""
    return {
        200: {
            "description": "What was wanted, and nothing else.",
            "content": {
                JSON_TYPE: {"schema": _answer_schema(operation)},
                MSGPACK: {"schema": _BINARY},
            },
        },
        **_problem_responses({*problems.PROBLEMS.values(), problems.INTERNAL}),
    }


def _problem_responses(kinds: Iterable[problems.Problem]) -> dict[int | str, Schema]:
    by_status: dict[int, list[str]] = {}
    for kind in sorted(kinds, key=lambda kind: (kind.status, kind.slug)):
        by_status.setdefault(kind.status, []).append(kind.type)
    return {
        status: {
            "description": f"Problem of type {' or '.join(types)}.",
            "content": {problems.MEDIA_TYPE: {"schema": _PROBLEM}},
        }
        for status, types in by_status.items()
    }


NOT_READY = _problem_responses([problems.NOT_READY])


def _body_schema(operation: Operation) -> Schema:
    return {
        "type": "object",
        "required": [*operation.operands, "idx", "num_segments"],
        "additionalProperties": False,
        "properties": {
            **_operand_schemas(operation),
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
            "cotangent": {
                **_any_of(form.value for form in operation.forms),
                "description": "g of vjp and hvp, in the shape of the value; ones if left out.",
            },
            "tangents": {
                "type": "object",
                "additionalProperties": False,
                "properties": _operand_schemas(operation),
                "description": "t of jvp and hvp by operand; those left out are zero.",
            },
        },
    }


def _answer_schema(operation: Operation) -> Schema:
    value = _any_of(form.value for form in operation.forms)
    gradients = {"type": "object", "properties": _operand_schemas(operation)}
    return {
        "type": "object",
        "properties": {"value": value, "vjp": gradients, "jvp": value, "hvp": gradients},
    }


def _operand_schemas(operation: Operation) -> dict[str, Schema]:
    return {
        name: _any_of(form.operands[name] for form in operation.forms)
        for name in operation.operands
    }


def _any_of(layouts: Iterable[Layout]) -> Schema:
    schemas = [_array_schema(layout) for layout in layouts]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _array_schema(layout: Layout) -> Schema:
    schema: Schema = {"type": "number"}
    for size in reversed(layout):
        bounds = {"minItems": size, "maxItems": size} if isinstance(size, int) else {}
        schema = {"type": "array", "items": schema, **bounds}
    return {**schema, "description": spell(layout)}
