"""The metadata that pyproject.toml cannot hold: links, from packaging/release.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
PLACES = tomllib.loads((ROOT / "packaging" / "release.toml").read_text())
#: Before the project has a home, links to it would be dead: the README keeps its own, and the package names none.
HOMELESS = any("OWNER" in place for place in PLACES.values())


def readme() -> str:
    """The README with links that work on a package index, where a relative one leads nowhere."""
    text = (ROOT / "README.md").read_text()
    if HOMELESS:
        return text
    files, pictures = f"{PLACES['repository']}/blob/main/", f"{PLACES['repository']}/raw/main/"
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{pictures}", text)
    return re.sub(r"((?<!!)\[[^]]*\]\()(?!https?:|#)", rf"\1{files}", text)


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    project_urls={}
    if HOMELESS
    else {
        "Documentation": PLACES["documentation"],
        "Source": PLACES["repository"],
        "Issues": f"{PLACES['repository']}/issues",
        "Changelog": f"{PLACES['repository']}/blob/main/CHANGELOG.md",
    },
)
