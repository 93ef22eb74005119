"""A torchvision that cannot be imported must not keep transformers from working.

optimum-intel requires torchvision. Beside a CPU build of torch, pip installs one that was built for
CUDA: importing it fails ("operator torchvision::nms does not exist"), and transformers, which finds
it installed, fails with it for every model. Text models need no torchvision at all, so it is hidden
whether it works or not: trying it would cost a second and leave half of a broken one behind.
"""

from __future__ import annotations

import sys

NAME = "torchvision"


def hide_torchvision() -> None:
    """From here on `import torchvision` fails as if it were not installed, and
    `importlib.util.find_spec` (which transformers asks) answers None. Called before transformers
    or optimum is imported; a torchvision that somebody imported already stays."""
    sys.modules.setdefault(NAME, None)  # type: ignore[arg-type]
