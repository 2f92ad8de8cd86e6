"""``python -m segops_service``: the same as the ``segops-service`` script."""

from segops_service.cli import main

raise SystemExit(main())
