"""What pip is given: as pip itself reads it, with the extra of the store."""

from __future__ import annotations

import sys

import pytest
from packaging.requirements import Requirement

from spotguard.bootstrap import requirement
from spotguard.providers.errors import UsageError
from tests.cases import cases

WHEEL = "spotguard-0.1.0-py3-none-any.whl"
URL = f"https://wheels.example.org/a/{WHEEL}"


def test_a_release_is_pinned_and_a_development_version_has_none() -> None:
    for store, extra in (("s3://b", "[s3]"), ("gs://b", "[gcs]"), ("az://b", "[azure]"), ("file:///x", "")):
        assert requirement.package(None, "", store, "0.2.0") == f"spotguard{extra}==0.2.0"
    with pytest.raises(UsageError, match=r"--package is missing: .* a development version"):
        requirement.package(None, "", "s3://b", "0.2.0.dev0")
    index = "https://pypi.example.org/simple"  # may have it
    assert requirement.package(None, index, "s3://b", "0.2.0.dev0") == "spotguard[s3]==0.2.0.dev0"


@cases(
    "said, given",
    [
        ("spotguard", "spotguard[s3]"),
        ("spotguard==0.1.0", "spotguard[s3]==0.1.0"),
        ("spotguard >=0.1, <1 ; python_version > '3'", "spotguard[s3]>=0.1, <1 ; python_version > '3'"),
        ("spotguard[s3]==0.1.0", "spotguard[s3]==0.1.0"),
        ("spotguard[torch, gcs]", "spotguard[torch,gcs,s3]"),
        ("spotguard[all]", "spotguard[all]"),
        (URL, f"spotguard[s3] @ {URL}"),
        (f"{URL}#sha256=00", f"spotguard[s3] @ {URL}#sha256=00"),
        (f"file:///srv/{WHEEL}", f"spotguard[s3] @ file:///srv/{WHEEL}"),
        (f"spotguard @ {URL}", f"spotguard[s3] @ {URL}"),
        (f"spotguard[torch]@{URL}", f"spotguard[torch,s3] @ {URL}"),
        (f"spotguard @ {URL} ; python_version>'3.8'", f"spotguard[s3] @ {URL} ; python_version>'3.8'"),
        (f"spotguard @ {URL}; python_version>'3.8'", f"spotguard[s3] @ {URL} ; python_version>'3.8'"),
        (f"{URL} ; os_name == 'posix'", f"spotguard[s3] @ {URL} ; os_name == 'posix'"),
        ("spotguard~=0.1.0", "spotguard[s3]~=0.1.0"),
        ("spotguard (>=0.1)", "spotguard[s3](>=0.1)"),
        (f"file://localhost/srv/{WHEEL}", f"spotguard[s3] @ file://localhost/srv/{WHEEL}"),
        ("https://codeload.github.com/acme/spotguard/tar.gz/refs/tags/v0.1.0", "spotguard[s3] @ https://codeload.github.com/acme/spotguard/tar.gz/refs/tags/v0.1.0"),
        ("https://api.github.com/repos/acme/spotguard/tarball/v0.1.0", "spotguard[s3] @ https://api.github.com/repos/acme/spotguard/tarball/v0.1.0"),
        ("https://acme.blob.core.windows.net/blob/spotguard.zip", "spotguard[s3] @ https://acme.blob.core.windows.net/blob/spotguard.zip"),
        ("git+https://example.org/spotguard@v0.1.0", "spotguard[s3] @ git+https://example.org/spotguard@v0.1.0"),
        ("git+file:///srv/spotguard@v0.1.0", "spotguard[s3] @ git+file://localhost/srv/spotguard@v0.1.0"),
        ("spotguard @ git+file:///srv/spotguard", "spotguard[s3] @ git+file://localhost/srv/spotguard"),
        ("https://example.org/spotguard-0.1.0.tar.gz", "spotguard[s3] @ https://example.org/spotguard-0.1.0.tar.gz"),
        ("http://example.org/archive/main.ZIP?x=1", "spotguard[s3] @ http://example.org/archive/main.ZIP?x=1"),
        ("file:///srv/spotguard", "spotguard[s3] @ file:///srv/spotguard"),
        (f"/srv/{WHEEL}", f"/srv/{WHEEL}[s3]"),
        (f"/srv/{WHEEL}[torch]", f"/srv/{WHEEL}[torch,s3]"),
        ("/srv/spotguard", "/srv/spotguard[s3]"),
    ],
)  # fmt: skip
def test_a_requirement_gets_the_extra_of_the_store(said: str, given: str) -> None:
    assert requirement.package(said, "", "s3://b") == given
    if not given.startswith("/"):
        read = Requirement(given)
        assert read.name == "spotguard"
        assert read.extras & {"s3", "all"}


def test_a_folder_needs_no_extra() -> None:
    assert requirement.package(URL, "", "file:///mnt/x") == f"spotguard @ {URL}"
    assert requirement.package(f"/srv/{WHEEL}", "", "file:///mnt/x") == f"/srv/{WHEEL}"


@cases(
    "said, why",
    [
        ("", "expected a requirement"),
        (" ", "expected a requirement"),
        (f"./dist/{WHEEL}", "a path on the machine from its root"),
        (f"dist/{WHEEL}", "a path on the machine from its root"),
        (WHEEL, "a path on the machine from its root"),
        (f"~/{WHEEL}", "a path on the machine from its root"),
        (".", "expected a requirement"),
        ("-r requirements.txt", "expected a requirement"),
        ("spotguard torch", "expected a requirement"),
        ("torch", "expected spotguard itself"),
        (f"file:dist/{WHEEL}", "expected a whole URL"),
        ("https:///x.whl", "expected a whole URL"),
        ("git+file:srv/spotguard", "expected a whole URL"),
        ("git+file:/srv/spotguard", "expected a whole URL"),
        ("git+file://", "expected a whole URL"),
        ("git+https:///srv/spotguard", "expected a whole URL"),
        ("https://example.org/a b.whl", "expected a whole URL"),
        ("https://example.org/latest.whl", "by its whole name only"),
        ("/srv/torch-2.6.0-py3-none-any.whl", "by its whole name only"),
        (f"s3://wheels/{WHEEL}", "pip fetches nothing from s3://"),
        (f"ftp://example.org/{WHEEL}", "pip fetches nothing from ftp://"),
        (f"spotguard @ gs://wheels/{WHEEL}", "pip fetches nothing from gs://"),
        ("spotguard=0.1.0", "expected a requirement"),
        ("spotguard==", "expected a requirement"),
        ("spotguard~0.1", "expected a requirement"),
        ("spotguard>>1", "expected a requirement"),
        ("spotguard; rm", "expected a requirement"),
        ("spotguard ;", "expected a requirement"),
        (f"spotguard @ {URL} ; rm", "expected a requirement"),
        (f"file://srv/{WHEEL}", "names the machine 'srv'"),
        ("spotguard==0.1.0 --index-url https://pypi.example.org/simple", "--index, or the wheel's own URL"),
        (f"{URL} --no-deps", "--index, or the wheel's own URL"),
        (f"/srv/{WHEEL} --no-deps", "--index, or the wheel's own URL"),
        ("https://example.org/spotguard.html", "is no file that pip installs"),
        ("https://example.org/acme/spotguard/", "is no file that pip installs"),
        ("https://github.com/acme/spotguard", "is no file that pip installs"),
        (f"https://github.com/acme/spotguard/blob/main/{WHEEL}", "is no file that pip installs"),
        ("https://example.org/", "is no file that pip installs"),
        (f"https://example.org/?file={WHEEL}", "is no file that pip installs"),
        (f"https://example.org/{WHEEL}/", "is no file that pip installs"),
        ("https://example.org/acme/spotguard/tree/v0.1.0", "is no file that pip installs"),
    ],
)
def test_a_requirement_that_the_machine_cannot_install_is_refused(said: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        requirement.package(said, "", "s3://b")
    assert repr(said) in str(caught.value)


def test_a_metrics_port_adds_the_extra_metrics() -> None:
    """Else the unit would be refused on every machine, where nobody reads it."""
    assert requirement.package(None, "", "s3://b", "0.2.0", metrics=True) == "spotguard[s3,metrics]==0.2.0"
    assert requirement.package("spotguard[all]", "", "s3://b", metrics=True) == "spotguard[all]"
    assert requirement.package(URL, "", "file:///x", metrics=True) == f"spotguard[metrics] @ {URL}"


def test_other_packages_are_requirements_too() -> None:
    said = [
        " torch>=2.6",
        "numpy",
        "/srv/mine-1-py3-none-any.whl",
        "https://example.org/x-1-py3-none-any.whl",
        "x @ https://example.org/x-1-py3-none-any.whl",
        "x @ https://example.org/x.zip ; python_version > '3'",
        "git+https://example.org/x@v1",
        "git+file:///srv/x",
        "numpy<2 ; sys.platform == 'linux'",
        "x[extra] @ git+ssh://git@example.org/x",
        "torch==2.6.0+cu124",
        "torch==${TORCH} ; sys_platform == 'linux'",
        "/srv/mine-1-py3-none-any.whl[extra]; os_name == 'posix'",
        "https://example.org/x-1-py3-none-any.whl; os_name == 'posix'",
        "https://example.org/x",
    ]
    assert requirement.others(said) == [text.strip() for text in said]
    # Until 24.1 pip takes no URL with a name and without a host.
    assert requirement.others(["x @ git+file:///srv/x"]) == ["x @ git+file://localhost/srv/x"]
    # pip knows a bare URL's marker by "; " alone.
    assert requirement.others(["https://example.org/x.zip ;os_name == 'posix'"]) == [
        "https://example.org/x.zip; os_name == 'posix'"
    ]
    for bad in (
        "",
        "./mine",
        "-r requirements.txt",
        "torch numpy",
        "mine.whl",
        "s3://b/x-1-py3-none-any.whl",
        "x @ s3://b/x.tar.gz",
        "https://example.org/x/",
        "x @ ./x.whl",
        "torch=2.6",
        "torch==",
        "torch; rm",
        "torch==2.6 --index-url https://download.example.org/whl/cpu",
        "torch==2.6 -i https://download.example.org/whl/cpu",
        "/srv/mine-1-py3-none-any.whl; rm",
        "file://srv/mine-1-py3-none-any.whl",
        "https://",
    ):
        with pytest.raises(UsageError, match="--with"):
            requirement.others([bad])


@pytest.mark.parametrize("said", ["", "./simple", "/srv/index", "pypi.example.org", "https://a b"])
def test_an_index_is_the_same_on_every_machine(said: str) -> None:
    with pytest.raises(UsageError, match="--index"):
        requirement.index(said)
    assert requirement.index("file:///srv/index") == "file:///srv/index"


def test_checking_versions_without_packaging_names_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare name needs no check, so `spotguard bootstrap` works without the extra."""
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    assert requirement.others(["torch"]) == ["torch"]
    with pytest.raises(
        UsageError, match=r"--with: .* pip install 'packaging>=23' \(spotguard's extra bootstrap\)"
    ):
        requirement.others(["torch==2.6"])
