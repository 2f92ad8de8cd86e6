"""Container health check: exit 0 when the service on this host is ready, else 1."""

import os
import sys
from http.client import HTTPConnection, HTTPException


def ready(port: int) -> bool:
    """Tell whether the service answers its readiness route with 200."""
    connection = HTTPConnection("127.0.0.1", port, timeout=4)
    try:
        connection.request("GET", "/v1/health/ready")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(not ready(int(os.environ.get("SEGOPS_PORT", "8000"))))
