"""`python3 -m puffertank`."""

import sys

from puffertank.launcher import main

sys.exit(main())
