"""Container health check: exit 0 when the service on this host is ready, else 1."""

import os
import ssl
import sys
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection


def ready(settings: Mapping[str, str]) -> bool:
    """Tell whether the service of these variables answers its readiness route with 200."""
    connection = connect(int(settings.get("SEGOPS_PORT", "8000")), settings)
    token = settings.get("SEGOPS_TOKENS", "").split(",")[0].strip()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request("GET", "/v1/health/ready", headers=headers)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def connect(port: int, settings: Mapping[str, str]) -> HTTPConnection:
    """Open a connection, over TLS where the service serves it."""
    if not settings.get("SEGOPS_TLS_CERTIFICATE"):
        return HTTPConnection("127.0.0.1", port, timeout=4)
    context = ssl.create_default_context()
    context.check_hostname = False  # it is made out to another name than the loopback's
    context.verify_mode = ssl.CERT_NONE
    return HTTPSConnection("127.0.0.1", port, timeout=4, context=context)


if __name__ == "__main__":
    sys.exit(not ready(os.environ))
