"""The net of the suite: who runs it with a cloud's variables set sees the same tests pass, and nothing asked of that cloud."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CALLERS = {
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_PROFILE": "mine",
    "AWS_ACCESS_KEY_ID": "mine",
    "AWS_SECRET_ACCESS_KEY": "mine",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "/mine",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:9/mine",
    "AZURE_STORAGE_KEY": "mine",
    "AZURE_STORAGE_ACCOUNT": "mine",
    "AZURE_CLIENT_ID": "mine",
    "AZURE_CLIENT_SECRET": "mine",
    "IDENTITY_ENDPOINT": "http://127.0.0.1:9/mine",
    "GOOGLE_APPLICATION_CREDENTIALS": "/mine",
    "GOOGLE_CLOUD_PROJECT": "mine",
    "GCLOUD_PROJECT": "mine",
    "CLOUDSDK_CONFIG": "/mine",
    "SPOTGUARD_STORE": "s3://mine",
}
PROGRAM = """
import os
def test_nothing_of_the_callers_is_left():
    assert [name for name in NAMES if "mine" in os.environ.get(name, "") or name.endswith("REGION") and name in os.environ] == []
"""


def test_nothing_that_the_caller_has_set_for_a_cloud_reaches_a_test(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(f"NAMES = {list(CALLERS)}\n{PROGRAM}")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        str(tmp_path),
    ]
    root = Path(__file__).parents[1]
    done = subprocess.run(
        command, cwd=root, env={**os.environ, **CALLERS}, capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
