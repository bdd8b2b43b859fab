"""A weight matrix in the very bytes of its file. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class StoredMatrix:
    """Rows of blocks as GGUF has them.

    Attributes:
        format_name: GGUF's name of the type, such as ``Q4_K``.
        rows: [N, bytes of a row].
        columns: how many weights each row has.
    """

    format_name: str
    rows: Bytes
    columns: int
