"""One way to save to a cloud's store, in a process of its own that does as it is told.

`python -m benchmarks.uploading WAY URL MIB FOLDER`; the words on its stdin, each answered by one JSON object:

    step             train one step; the processor seconds so far, and the checksum of the state that is now to be saved
    save             save it (spotguard is told by its socket instead): seconds
    use              processor seconds so far, and the most host memory since `step`, beyond the state
    restore          load the newest into a new model and optimizer: seconds, memory, and the state's checksum

Memory counts from before the way was made ready, so that its modules, buffers and connections are in it.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .mixture import Mixture

RUN_ID = "link"
#: Steps until a guard has seen what stays as it is, and has rehearsed its save.
_SETTLED = 4
_THREADS = 4  # of DCP's writers: as many as our writer has


def main(way: str, url: str, mib: int, folder: Path) -> None:
    warnings.simplefilter("ignore")  # DCP's, about being alone
    trained = Mixture(mib, stepped=way != "restore")
    before = _resident("VmRSS")
    if way == "restore":
        step, save = None, None
    elif way == "spotguard":
        step, save = _guarded(trained, url), None
    else:
        step, save = trained.step, WAYS[way](trained, url, folder)
    answer: dict[str, Any] = {"bytes": trained.nbytes}
    print(json.dumps(answer), flush=True)
    del answer
    for word in sys.stdin:
        match word.strip():
            case "step" if step is not None:
                step()
                _mark()
                answer = {"checksum": trained.checksum(), "cpu": time.process_time()}
            case "save" if save is not None:
                started = time.perf_counter()
                save()
                answer = {"seconds": time.perf_counter() - started}
            case "use":
                extra = max(0, _resident("VmHWM") - before)
                answer = {"cpu": time.process_time(), "extra": extra / 2**20}
            case "restore":
                answer = _restore(url, mib)
            case other:
                raise ValueError(f"{way} is told {other!r}")
        print(json.dumps(answer), flush=True)


# --- ours ---


def _register(trained: Mixture, url: str, run_id: str) -> Any:
    import spotguard

    os.environ.update(SPOTGUARD_EVERY="off", SPOTGUARD_KEEP="1000")  # nothing beside what is measured
    return spotguard.register(url, run_id=run_id, model=trained.model, optimizer=trained.optimizer)


def _guarded(trained: Mixture, url: str) -> Callable[[], None]:
    guard = _register(trained, url, RUN_ID)
    guard.restore()

    def step() -> None:
        trained.step()
        guard.step()

    for _ in range(_SETTLED):
        step()
    return step


def _restore(url: str, mib: int) -> dict[str, Any]:
    trained = Mixture(mib, stepped=False)
    _mark()
    before = _resident("VmRSS")
    guard = _register(trained, url, "reader")  # beside the run that goes on saving: it is not fenced
    started, used = time.perf_counter(), time.process_time()
    guard.restore(run_id=RUN_ID)
    spent, used = time.perf_counter() - started, time.process_time() - used
    extra = max(0, _resident("VmHWM") - before - trained.moments) / 2**20
    guard.close()
    return {"seconds": spent, "cpu": used, "extra": extra, "checksum": trained.checksum()}


# --- the others: each as its own pages say, with what makes it fast ---

Maker = Callable[[Mixture, str, Path], Callable[[], object]]


def _dcp(trained: Mixture, writer: Any) -> Callable[[], object]:
    from torch.distributed import is_initialized
    from torch.distributed.checkpoint.state_dict_saver import save

    return lambda: save(trained.states(), storage_writer=writer, no_dist=not is_initialized())


def _s3fs(trained: Mixture, url: str, folder: Path) -> Callable[[], object]:
    module = importlib.import_module("torch.distributed.checkpoint._fsspec_filesystem")
    # sync_files would flush the whole machine's disks for each file.
    return _dcp(trained, module.FsspecWriter(f"{url}/s3fs", sync_files=False, thread_count=_THREADS))


def _s3torchconnector(trained: Mixture, url: str, folder: Path) -> Callable[[], object]:
    dcp = importlib.import_module("s3torchconnector.dcp")
    client = importlib.import_module("s3torchconnector._s3client")
    config = importlib.import_module("s3torchconnector").S3ClientConfig(force_path_style=True)
    region, endpoint = os.environ["AWS_REGION"], os.environ["AWS_ENDPOINT_URL_S3"]
    writer = dcp.S3StorageWriter(region, f"{url}/s3torch/", thread_count=_THREADS, overwrite=True)
    # Its writer takes no endpoint; its client does.
    writer.fs._client = client.S3Client(region, endpoint=endpoint, s3client_config=config)
    return _dcp(trained, writer)


def _on_disk(trained: Mixture, folder: Path, upload: Callable[[str], object]) -> Callable[[], object]:
    import torch

    path = folder / "state.pt"

    def save() -> None:
        torch.save(trained.states(), path)
        upload(str(path))
        path.unlink()

    return save


def _upload_file(trained: Mixture, url: str, folder: Path) -> Callable[[], object]:
    boto3 = importlib.import_module("boto3")
    client, bucket = boto3.client("s3"), urlsplit(url).netloc
    return _on_disk(trained, folder, lambda path: client.upload_file(path, bucket, "state.pt"))


def _upload_blob(trained: Mixture, url: str, folder: Path) -> Callable[[], object]:
    blobs = importlib.import_module("azure.storage.blob")
    connection = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
    client = blobs.BlobClient.from_connection_string(connection, urlsplit(url).netloc, "state.pt")

    def upload(path: str) -> None:
        with open(path, "rb") as file:
            client.upload_blob(file, overwrite=True, max_concurrency=_THREADS)

    return _on_disk(trained, folder, upload)


def _resumable(trained: Mixture, url: str, folder: Path) -> Callable[[], object]:
    storage = importlib.import_module("google.cloud.storage")
    credentials = importlib.import_module("google.auth.credentials").AnonymousCredentials()
    # The proxy before the emulator knows no resumable upload: this one goes to the emulator itself.
    options = {"api_endpoint": os.environ["EMULATOR"]}
    client = storage.Client(project="p", credentials=credentials, client_options=options)
    blob = client.create_bucket("peer").blob("state.pt")
    return _on_disk(trained, folder, blob.upload_from_filename)  # above 8 MiB it is a resumable one


WAYS: dict[str, Maker] = {
    "DCP + s3fs": _s3fs,
    "DCP + s3torchconnector": _s3torchconnector,
    "torch.save + upload_file": _upload_file,
    "torch.save + upload_blob": _upload_blob,
    "torch.save + resumable upload": _resumable,
}


# --- memory ---


def _mark() -> None:
    """What is free goes back to the kernel, and the high-water mark starts anew: proc(5)."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def _resident(name: str) -> int:
    """A line of /proc/self/status ("VmRSS", "VmHWM") in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
