"""Entry point of ``python -m benchmarks``."""

import sys

from benchmarks.speed import main

sys.exit(main())
