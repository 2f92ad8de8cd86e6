"""The OpenAPI document is true: its examples work, its schemas hold."""

from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import jsonschema
import pytest

from segops_client import wire
from segops_service import Settings, paths, problems
from segops_service.openapi import example
from segops_service.operations import OPERATIONS
from tests.service.helpers import WANTS, serving

JSON = "application/json"
SERVICE = ["/v1/metadata", "/v1/status", paths.METRICS, *sorted(paths.HEALTH)]


class Document:
    """The served document, whose references lead into itself."""

    def __init__(self, client: httpx.Client) -> None:
        self.whole: dict[str, Any] = client.get(paths.OPENAPI).json()
        self.paths: dict[str, Any] = self.whole["paths"]

    def response(self, path: str, status: int) -> dict[str, Any]:
        (operation,) = self.paths[path].values()
        response: dict[str, Any] = operation["responses"][str(status)]
        while "$ref" in response:
            response = self.whole["components"]["responses"][response["$ref"].rpartition("/")[2]]
        return response

    def validator(self, schema: Mapping[str, Any]) -> jsonschema.Draft202012Validator:
        jsonschema.Draft202012Validator.check_schema(schema)
        components = self.whole["components"]
        return jsonschema.Draft202012Validator({"components": components, "allOf": [schema]})

    def check(self, path: str, response: httpx.Response) -> None:
        """Check that a response is one that the document declares, headers and all."""
        declared = self.response(path, response.status_code)
        media_type = response.headers["content-type"].partition(";")[0]
        schema = declared["content"][media_type]["schema"]
        if media_type.endswith("json"):
            self.validator(schema).validate(response.json())
        for name, header in declared["headers"].items():
            if header["required"]:
                assert name in response.headers


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> Document:
    return Document(client)


@pytest.mark.parametrize("op", OPERATIONS)
def test_the_example_of_each_operation_works_and_fits_the_schemas(
    client: httpx.Client, document: Document, op: str
) -> None:
    content = document.paths[f"/v1/{op}"]["post"]["requestBody"]["content"][JSON]
    document.validator(content["schema"]).validate(content["example"])
    response = client.post(f"/v1/{op}", json=content["example"])
    assert response.status_code == 200, response.text
    assert response.json().keys() == {*content["example"]["want"]}
    document.check(f"/v1/{op}", response)


@pytest.mark.parametrize("op", OPERATIONS)
def test_everything_wanted_fits_the_schema(
    client: httpx.Client, document: Document, op: str
) -> None:
    response = client.post(f"/v1/{op}", json={**example(op), "want": list(WANTS)})
    document.check(f"/v1/{op}", response)
    schema = document.whole["components"]["schemas"][f"{op}_answer"]
    assert schema["properties"].keys() == response.json().keys()


@pytest.mark.parametrize("op", OPERATIONS)
def test_the_schema_refuses_what_the_service_refuses(
    client: httpx.Client, document: Document, op: str
) -> None:
    schema = document.paths[f"/v1/{op}"]["post"]["requestBody"]["content"][JSON]["schema"]
    validator = document.validator(schema)
    first = OPERATIONS[op].operands[0]
    assert validator.is_valid(example(op))
    for change in (
        {"unknown": 1},
        {"num_segments": -1},
        {"num_segments": None},
        {"want": []},
        {"want": ["grad"]},
        {"want": None},
        {"out_of_range": "wrap"},
        {"dtype": "float16"},
        {first: [[1.0, 2.0]] * 3},
        {first: [[1.0, 2.0, None]] * 3},
        {first: None},
        {"idx": [0.5, 0, 1]},
        {"tangents": {"unknown": []}},
        {"tangents": []},
    ):
        body = {**example(op), **change}
        assert not validator.is_valid(body), change
        assert client.post(f"/v1/{op}", json=body).status_code == 422, change


@pytest.mark.parametrize("op", OPERATIONS)
def test_the_schema_takes_null_where_the_service_does(
    client: httpx.Client, document: Document, op: str
) -> None:
    body = {**example(op), "want": ["value", "vjp"], "cotangent": None, "tangents": None}
    schema = document.paths[f"/v1/{op}"]["post"]["requestBody"]["content"][JSON]["schema"]
    document.validator(schema).validate(body)
    assert client.post(f"/v1/{op}", json=body).status_code == 200


REFUSED: dict[str, tuple[int, dict[str, Any]]] = {
    "malformed-body": (400, {"json": []}),
    "not-acceptable": (406, {"json": {}, "headers": {"accept": "text/html"}}),
    "unsupported-media-type": (415, {"content": b"x", "headers": {"content-type": "text/plain"}}),
    "invalid-argument": (422, {"json": {}}),
    "deadline-exceeded": (503, {"json": {}, "headers": {"x-request-timeout": "1e-9"}}),
}


@pytest.mark.parametrize(("slug", "case"), REFUSED.items(), ids=REFUSED)
@pytest.mark.parametrize("op", OPERATIONS)
def test_a_refusal_fits_what_is_declared_for_its_status(
    client: httpx.Client, document: Document, op: str, slug: str, case: Any
) -> None:
    status, request = case
    request = {**request, "json": example(op)} if status in (406, 503) else request
    response = client.post(f"/v1/{op}", **request)
    assert response.status_code == status, response.text
    assert response.json()["type"].endswith(slug)
    document.check(f"/v1/{op}", response)


@pytest.mark.parametrize("op", OPERATIONS)
def test_every_problem_that_an_operation_has_is_declared(document: Document, op: str) -> None:
    kinds = {*problems.PROBLEMS.values()} - {problems.UNAUTHORIZED}
    for kind in kinds:
        response = document.response(f"/v1/{op}", kind.status)
        schema = response["content"][problems.MEDIA_TYPE]["schema"]
        assert kind.type in schema["properties"]["type"]["enum"]
    responses = document.paths[f"/v1/{op}"]["post"]["responses"]
    assert {*responses} == {"200", "408", "431", "500", *(str(kind.status) for kind in kinds)}
    assert document.response(f"/v1/{op}", 429)["headers"]["Retry-After"]["required"]


@pytest.mark.parametrize("path", SERVICE)
def test_what_the_service_says_of_itself_fits_its_schema(
    client: httpx.Client, document: Document, path: str
) -> None:
    response = client.get(path)
    assert response.status_code == 200
    document.check(path, response)


def test_every_path_is_in_the_document_once(document: Document) -> None:
    assert {*document.paths} == {*SERVICE, *(f"/v1/{op}" for op in OPERATIONS)}
    names = [
        operation["operationId"] for item in document.paths.values() for operation in item.values()
    ]
    assert len({*names}) == len(names) == len(document.paths)


@pytest.mark.parametrize("media_type", [*wire.MEDIA_TYPES, JSON])
def test_every_declared_media_type_is_read(
    client: httpx.Client, document: Document, media_type: str
) -> None:
    for op in OPERATIONS:
        assert media_type in document.paths[f"/v1/{op}"]["post"]["requestBody"]["content"]
        response = client.post(f"/v1/{op}", content=b"", headers={"content-type": media_type})
        assert response.status_code == 400
    assert len(document.paths["/v1/segmented_sum"]["post"]["requestBody"]["content"]) == 4


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from _references(inner)


def test_every_reference_leads_somewhere_and_every_component_is_used(document: Document) -> None:
    components = document.whole["components"]
    there = {f"#/components/{kind}/{name}" for kind in components for name in components[kind]}
    assert {*_references(document.whole)} == there


@pytest.fixture(scope="module")
def guarded() -> Iterator[httpx.Client]:
    """Client, with a token, of a server that needs one."""
    with serving(Settings(tokens="secret", public_routes="metrics")) as client:
        client.headers["authorization"] = "Bearer secret"
        yield client


def test_tokens_are_in_the_document_where_they_are_needed_alone(
    client: httpx.Client, guarded: httpx.Client
) -> None:
    free, bound = Document(client), Document(guarded)
    assert "securitySchemes" not in free.whole["components"]
    assert bound.whole["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    for path, item in bound.paths.items():
        ((method, operation),) = item.items()
        response = guarded.request(method, path, headers={"authorization": "Bearer wrong"})
        assert (response.status_code == 401) == ("security" in operation) == (path != paths.METRICS)
        if response.status_code == 401:
            bound.check(path, response)
            assert "401" not in free.paths[path][method]["responses"]
