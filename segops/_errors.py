"""Errors that name the argument at fault and what would repair it.

::

    ArgumentError
    ├── ArgumentTypeError      also a TypeError
    └── ArgumentValueError     also a ValueError
        └── SegmentIdError     names the first offending position
"""


class ArgumentError(Exception):
    """An argument cannot be used; ``argument`` is its name."""

    def __init__(self, argument: str, message: str) -> None:
        super().__init__(argument, message)
        self.argument = argument
        self.message = message

    def __str__(self) -> str:
        return self.message


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has the wrong type or dtype."""


class ArgumentValueError(ArgumentError, ValueError):
    """An argument has the wrong shape or value."""


class SegmentIdError(ArgumentValueError):
    """A segment id is out of range or out of order; ``position`` is the first such row."""

    def __init__(self, argument: str, message: str, position: int) -> None:
        super().__init__(argument, message)
        self.args = (argument, message, position)
        self.position = position
