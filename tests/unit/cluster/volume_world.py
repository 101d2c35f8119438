"""Files in a mounted ConfigMap, for the tests beside this file."""

import json
from pathlib import Path
from typing import Any


class Volume:
    """A ConfigMap's volume as a kubelet keeps it: files are links through one that is exchanged."""

    def __init__(self, folder: Path, **bodies: Any) -> None:
        self.folder, self._number = folder, 0
        folder.mkdir()
        self.put(**bodies)
        for name in bodies:
            (folder / name).symlink_to(Path("..data") / name)

    def put(self, **bodies: Any) -> None:
        """All of them at once; a body of text as it is, None: none."""
        self._number += 1
        anew = self.folder / f"..{self._number}"
        anew.mkdir()
        for name, body in bodies.items():
            if body is not None:
                text = body if isinstance(body, str) else json.dumps(body)
                (anew / name).write_text(text)
        link = self.folder / "..anew"
        link.symlink_to(anew.name)
        link.replace(self.folder / "..data")

    def path(self, name: str) -> str:
        return str(self.folder / name)
