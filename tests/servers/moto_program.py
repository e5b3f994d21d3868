"""moto_server whose conditional creates are one step each: `python moto_program.py -H 127.0.0.1 -p PORT`, with moto's own Python.

moto looks whether the key is there and puts the object afterwards, on a thread for each request: of rivals for one
key two may win. S3 lets one win ("Conditional writes" in its user guide), and commits rest on that.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from moto.s3.responses import S3Response  # type: ignore[import-not-found]  # it lives in the servers' own environment
from moto.server import main  # type: ignore[import-not-found]

_put_object = S3Response.put_object
_turn = threading.Lock()


@functools.wraps(_put_object)
def _in_turn(request: S3Response) -> Any:
    # The body has been read by now: nobody waits for another's link.
    with _turn:
        return _put_object(request)


S3Response.put_object = _in_turn

if __name__ == "__main__":
    main()
