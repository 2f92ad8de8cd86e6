"""The OpenAPI document is true: its examples work, its schemas hold."""

from typing import Any

import httpx
import jsonschema
import pytest

from segops_client import wire
from segops_service import problems
from segops_service.openapi import example
from segops_service.operations import OPERATIONS
from tests.service.helpers import WANTS


@pytest.fixture(scope="module")
def paths(client: httpx.Client) -> dict[str, Any]:
    """Paths of the served document."""
    document: dict[str, Any] = client.get("/openapi.json").json()
    return document["paths"]  # type: ignore[no-any-return]


def _schema(part: dict[str, Any], media_type: str = "application/json") -> dict[str, Any]:
    schema: dict[str, Any] = part["content"][media_type]["schema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


@pytest.mark.parametrize("op", OPERATIONS)
def test_the_example_of_each_operation_works_and_fits_the_schemas(
    client: httpx.Client, paths: dict[str, Any], op: str
) -> None:
    post = paths[f"/v1/{op}"]["post"]
    body = post["requestBody"]["content"]["application/json"]["example"]
    jsonschema.validate(body, _schema(post["requestBody"]))
    response = client.post(f"/v1/{op}", json=body)
    assert response.status_code == 200, response.text
    assert response.json().keys() == {*body["want"]}
    jsonschema.validate(response.json(), _schema(post["responses"]["200"]))


@pytest.mark.parametrize("op", OPERATIONS)
def test_everything_wanted_fits_the_schema(
    client: httpx.Client, paths: dict[str, Any], op: str
) -> None:
    response = client.post(f"/v1/{op}", json={**example(op), "want": list(WANTS)})
    schema = _schema(paths[f"/v1/{op}"]["post"]["responses"]["200"])
    jsonschema.validate(response.json(), schema)
    assert schema["properties"].keys() == response.json().keys()


@pytest.mark.parametrize("op", OPERATIONS)
def test_the_schema_refuses_what_the_service_refuses(
    client: httpx.Client, paths: dict[str, Any], op: str
) -> None:
    schema = _schema(paths[f"/v1/{op}"]["post"]["requestBody"])
    first = OPERATIONS[op].operands[0]
    for change in (
        {"unknown": 1},
        {"num_segments": -1},
        {"want": []},
        {"want": ["grad"]},
        {"out_of_range": "wrap"},
        {"dtype": "float16"},
        {first: [[1.0, 2.0]] * 3},
        {first: [[1.0, 2.0, None]] * 3},
        {"idx": [0.5, 0, 1]},
        {"tangents": {"unknown": []}},
    ):
        body = {**example(op), **change}
        assert not jsonschema.Draft202012Validator(schema).is_valid(body), change
        assert client.post(f"/v1/{op}", json=body).status_code == 422, change


@pytest.mark.parametrize("op", OPERATIONS)
def test_problems_are_declared_and_fit_their_schema(
    client: httpx.Client, paths: dict[str, Any], op: str
) -> None:
    responses = paths[f"/v1/{op}"]["post"]["responses"]
    declared = {int(status) for status in responses} - {200}
    assert declared == {400, 406, 413, 415, 422, 500, 503, 507}
    for body, status in (({}, 422), ([], 400)):
        response = client.post(f"/v1/{op}", json=body)
        assert response.status_code == status
        jsonschema.validate(response.json(), _schema(responses[str(status)], problems.MEDIA_TYPE))


def test_both_encodings_are_declared(paths: dict[str, Any]) -> None:
    for op in OPERATIONS:
        post = paths[f"/v1/{op}"]["post"]
        for part in (post["requestBody"], post["responses"]["200"]):
            assert part["content"].keys() == {"application/json", wire.MEDIA_TYPE}
