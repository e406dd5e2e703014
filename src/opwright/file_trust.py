"""Whether another user could have written a file: what is loaded and run as this user must not be such a file.

The artifact cache applies it to its root, its folders and its files. A temporary folder replaces an untrusted root,
with a warning. New folders are ``0700``; an administrator who shares a cache makes it readable
(``chmod -R go+rX``).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["OTHERS_WRITE", "why_untrusted"]

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def why_untrusted(path: Path) -> tuple[str, str] | None:
    """Why nothing is loaded from a file or folder, and what to do about it; None if only this user and root can write
    it, or if it is not there. What root owns is trusted, so that an administrator can share a folder."""
    try:
        status = path.stat()
    except OSError:
        return None
    if status.st_uid not in (os.geteuid(), 0):
        return "belongs to another user", "set OPWRIGHT_CACHE_DIR to a folder of your own"
    if status.st_mode & OTHERS_WRITE:
        return "can be written by other users", f"run `chmod go-w {path}`, or set OPWRIGHT_CACHE_DIR to another folder"
    return None
