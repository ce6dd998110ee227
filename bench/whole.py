"""Files of results: all of the new text is on the disk before it takes the old one's place."""

import os
import sys
from pathlib import Path


def write(path, text):
    """Ends the program by name and remedy if it cannot; what was there stays."""
    path = Path(path).resolve()  # a link stays one
    part = path.with_name(path.name + ".part")
    try:
        with part.open("w") as to:
            to.write(text)
            to.flush()
            os.fsync(to.fileno())
        os.replace(part, path)
    except OSError as why:
        part.unlink(missing_ok=True)
        sys.exit(f"{path} cannot be written: {why.strerror}; make room in its folder, or have it writable")
