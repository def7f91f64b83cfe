"""`python -m pufferlib` is the command `puffer`."""

import sys

from pufferlib.cli import main

sys.exit(main())
