"""The software bill of materials of a package: CycloneDX in JSON, for ``.dist-info/sboms`` (PEP 770)."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["sbom"]


def sbom(
    name: str, version: str, licence: str, requirements: Iterable[str], libraries: Mapping[str, Path], opwright: str
) -> str:
    """The bill of a package.

    Args:
        licence: the SPDX expression of the package; "" if its author has stated none.
        requirements: as in its metadata; they are required, not contained.
        libraries: the compiled libraries that it contains, by their path in it.
        opwright: the version of opwright, parts of which it contains.
    """
    own: dict[str, Any] = {"type": "library", "bom-ref": name, "name": name, "version": version}
    own["purl"] = f"pkg:pypi/{name.replace('_', '-')}@{version}"
    if licence:
        own["licenses"] = [{"expression": licence}]
    contained: list[dict[str, Any]] = [
        {
            "type": "library", "bom-ref": "opwright", "name": "opwright", "version": opwright, "scope": "required",
            "purl": f"pkg:pypi/opwright@{opwright}", "licenses": [{"license": {"id": "Apache-2.0"}}],
            "description": "the files in _opwright, with other names of modules",
        }
    ]  # fmt: skip
    for path, file in sorted(libraries.items()):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        hashes = [{"alg": "SHA-256", "content": digest}]
        contained.append({"type": "file", "bom-ref": path, "name": path, "hashes": hashes})
    required = []
    for requirement in sorted(set(requirements)):
        project = re.split(r"[^\w.-]", requirement)[0]
        reference = f"requires:{project.lower()}"
        required.append(reference)
        contained.append({
            "type": "library", "bom-ref": reference, "name": project, "scope": "excluded",
            "purl": f"pkg:pypi/{project.lower().replace('_', '-')}", "description": f"required, as {requirement}",
        })  # fmt: skip
    record = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{name}@{version}')}",
        "version": 1,
        "metadata": {"component": own},
        "components": contained,
        "dependencies": [{"ref": name, "dependsOn": ["opwright", *sorted(libraries), *required]}],
    }
    return json.dumps(record, indent=2) + "\n"
