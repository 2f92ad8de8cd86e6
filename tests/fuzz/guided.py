"""Coverage-guided search: ``python -m tests.fuzz.guided wire|msgpack|json [ARGUMENT]...``.

The further arguments are libFuzzer's: options, folders, or a file to try once more.
Atheris adds its probes while modules are imported, so this runs in a process of its own.
"""

import sys

import atheris

with atheris.instrument_imports(include=["segops_client.wire", "segops_service"]):
    from tests.fuzz.properties import PROPERTIES

from tests.fuzz.bounds import MEMORY, SECONDS, bound_memory


def main(target: str, *arguments: str) -> None:
    """Search until an option or an input ends it; libFuzzer ends the process."""
    bound_memory()
    options = [
        f"-timeout={SECONDS}",
        f"-malloc_limit_mb={MEMORY >> 20}",
        "-rss_limit_mb=0",  # the bound on the process is meant for it
        "-max_len=8192",
        *arguments,
    ]
    atheris.Setup([sys.argv[0], *options], PROPERTIES[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
