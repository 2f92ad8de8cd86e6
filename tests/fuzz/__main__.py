"""All searches for input that breaks the service: ``python -m tests.fuzz SECONDS`` for each.

A coverage-guided search leaves what it found in the folder `.fuzz`.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.seeds import json_seeds, msgpack_seeds

FOUND = Path(".fuzz")
SEEDS = {"wire": msgpack_seeds, "msgpack": msgpack_seeds, "json": json_seeds}
WORDS = {
    "wire": ["nd", "type", "kind", "shape", "data", "<f4", ">f8", "|b1", "=i8", "|O"],
    "msgpack": ["x", "y", "v", "m", "idx", "num_segments", "want", "cotangent", "tangents"],
    "json": ['"x":', '"idx":', '"dtype":"float64"', '"num_segments":', "null", "[[", "]]", "1e400"],
}


def main(seconds: str) -> int:
    """Run every search, whatever the others found; return how many found something."""
    FOUND.mkdir(exist_ok=True)
    broken = [*search("structured", seconds), *search("api", seconds)]
    for target in SEEDS:
        broken += guided(target, seconds)
    print(f"found by {', '.join(broken)}" if broken else "nothing was found")
    return len(broken)


def guided(target: str, seconds: str) -> list[str]:
    """Search from seeds, guided by coverage."""
    with tempfile.TemporaryDirectory() as folder:
        corpus, words = Path(folder) / "corpus", Path(folder) / "words"
        corpus.mkdir()
        for number, seed in enumerate(SEEDS[target]()):
            (corpus / str(number)).write_bytes(seed)
        words.write_text("".join(f'"{_quoted(word)}"\n' for word in WORDS[target]))
        options = [f"-max_total_time={seconds}", f"-dict={words}", f"-artifact_prefix={FOUND}/"]
        return search("guided", target, *options, str(corpus))


def search(module: str, *arguments: str) -> list[str]:
    """Run a search in a process of its own; return its name if it found something."""
    name = f"tests.fuzz.{module}"
    print(f"--- {name} {arguments[0]}", flush=True)
    done = subprocess.run([sys.executable, "-m", name, *arguments], check=False)
    return [f"{name} {arguments[0]}"] if done.returncode else []


def _quoted(word: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word.encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
