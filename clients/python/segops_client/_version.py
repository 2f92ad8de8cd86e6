"""The version of this distribution."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("segops-client")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"
