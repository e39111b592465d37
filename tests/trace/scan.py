"""What of some secrets a text still tells."""

from __future__ import annotations

import json
from collections.abc import Iterable


def scan(data: bytes, secrets: Iterable[str]) -> list[str]:
    """Those of `secrets` that occur in `data`, JSON escapes undone, in any case.

    Args:
        data: JSON text, decompressed.
        secrets: what must not be there.
    """
    text = data.decode("utf-8", "replace").lower()
    plain = text.replace("\\/", "/").replace("\\u002f", "/").replace("\\\\", "\\")
    found = []
    for secret in secrets:
        wanted = secret.lower()
        if wanted in text or wanted in plain or json.dumps(wanted)[1:-1] in text:
            found.append(secret)
    return found
