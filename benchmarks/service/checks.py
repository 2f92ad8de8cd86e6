"""Whether the answers under load were right."""

from collections.abc import Sequence

from benchmarks.service import problems
from benchmarks.service.load import Load
from benchmarks.service.problems import Problem


def faults(asked: Sequence[Problem], loads: Sequence[Load]) -> tuple[str, ...]:
    """Say what was wrong: statuses, lost answers, changed ones, and the first ones by NumPy.

    Parameters
    ----------
    asked
        The problem behind each request of the load.
    loads
        What came of it.
    """
    found = []
    for load in loads:
        found += [f"{n} answers {status}" for status, n in load.statuses.items() if status != 200]
        found += [f"{load.changed} answers changed"] if load.changed else []
        found += [f"{load.lost} answers lost"] if load.lost else []
        for position, body in load.first.items() if load.statuses.keys() == {200} else ():
            problem = asked[position]
            wrong = problems.difference(
                problems.unpack(body), problem.expected(), problem.dtype, len(problem.idx)
            )
            found += [wrong] if wrong else []
    return tuple(found)
