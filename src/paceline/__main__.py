"""``python -m paceline`` is the same as ``paceline``."""

import sys

from paceline.cli.main import main

sys.exit(main())
