"""HTTP service for segment operations: values, VJPs, JVPs and HVPs over msgpack or JSON."""

from segops_service.app import create_app
from segops_service.engine import Engine
from segops_service.metadata import SERVICE_VERSION
from segops_service.settings import Settings

__version__ = SERVICE_VERSION

__all__ = ["Engine", "Settings", "__version__", "create_app"]
