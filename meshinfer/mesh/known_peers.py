"""Where PCs were reached lately, so that a restarted PC finds its fleet without multicast."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from meshinfer.core.fleet import Address
from meshinfer.core.ids import NodeId
from meshinfer.mesh.atomic_file import replace_file

MOST_KNOWN = 64
MOST_ADDRESSES = 16

log = logging.getLogger(__name__)


class KnownPeersFile:
    """Implements KnownPeers as JSON: {"node": ["host:port", ...]}, the newest last."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> dict[NodeId, tuple[Address, ...]]:
        """Nothing when the file is missing or damaged: it holds hints only."""
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            if not isinstance(document, dict):
                raise ValueError("not an object")
            return {
                NodeId(node): tuple(Address.parse(word) for word in words[:MOST_ADDRESSES])
                for node, words in list(document.items())[-MOST_KNOWN:]
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            log.warning("%s cannot be read (%s): known PCs are forgotten", self._path, error)
            return {}

    def save(self, known: dict[NodeId, tuple[Address, ...]]) -> None:
        """A full disk is logged: hints are not worth an error."""
        newest = list(known.items())[-MOST_KNOWN:]
        document = {node: [str(one) for one in told[:MOST_ADDRESSES]] for node, told in newest}
        try:
            replace_file(self._path, json.dumps(document, indent=1))
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error)
