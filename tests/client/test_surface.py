"""The client is the library by other means: same names, same signatures, no JAX."""

import inspect
import subprocess
import sys

import pytest

import segops
import segops_client
from segops_client import Client

OPS = (
    "segmented_sum",
    "segmented_mean",
    "segmented_dot",
    "segmented_rms_norm",
    "segmented_mul",
    "segmented_matvec",
)


def parameters(function, skip=0):
    """Names, kinds and defaults; the two speak of arrays of different libraries."""
    found = list(inspect.signature(function).parameters.values())[skip:]
    return [(parameter.name, parameter.kind, parameter.default) for parameter in found]


@pytest.mark.parametrize("name", [*OPS, "value_and_vjp", "jvp", "hvp"])
def test_a_call_of_the_library_is_a_call_of_the_client(name):
    method = parameters(getattr(Client, name), skip=1)
    assert method == parameters(getattr(segops, name))


def test_no_public_name_is_missing_from_the_package():
    exported = {
        name
        for name, value in vars(segops_client._errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert exported < {*segops_client.__all__}
    assert all(hasattr(segops_client, name) for name in segops_client.__all__)


def test_no_name_appears_that_the_package_does_not_have():
    assert {*segops_client.__all__} <= {*dir(segops_client)}
    with pytest.raises(AttributeError, match="no attribute 'Cleint'"):
        segops_client.Cleint  # noqa: B018
    with pytest.raises(ImportError, match="Cleint"):
        exec("from segops_client import Cleint")


@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        ("segops_client, segops_client.wire", {"jax", "jaxlib", "warp", "httpx"}),
        ("segops_client._client", {"jax", "jaxlib", "warp"}),
    ],
)
def test_an_import_brings_no_more_than_it_needs(imported, absent):
    code = (
        f"import sys, {imported};"
        f"print({{name.partition('.')[0] for name in sys.modules}} & {absent})"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed.strip() == "set()"
