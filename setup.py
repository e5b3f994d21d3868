"""The metadata that pyproject.toml cannot hold: links, from packaging/release.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

#: What `spotguard run --attach` has in an interpreter that ignores PYTHONPATH (python -I, -E). `site` runs it at each start: 0.1 ms
#: without the variable.
STARTUP = "import os; os.environ.get('SPOTGUARD_ATTACH') and __import__('spotguard.attach.import_watch', fromlist=['begin']).begin()\n"

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


class WithStartup(build_py):
    """Puts the startup line beside the package. An editable install has none, and depends on PYTHONPATH."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self._startup.write_text(STARTUP)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), str(self._startup)]

    @property
    def _startup(self) -> Path:
        return Path(self.build_lib, "spotguard-attach.pth")


setup(
    cmdclass={"build_py": WithStartup},
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
