"""The pandas edge: a table of a `Trace` as a DataFrame, codes decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hostgap.errors import HostgapError
from hostgap.trace.model import CopyKind, GpuKind, HostKind, Memory, Role, Trace

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("gpu_ops", "api_calls", "host_ops", "frames")

_ENUMS = {
    ("gpu_ops", "kind"): GpuKind,
    ("gpu_ops", "copy_kind"): CopyKind,
    ("gpu_ops", "src_mem"): Memory,
    ("gpu_ops", "dst_mem"): Memory,
    ("api_calls", "role"): Role,
    ("host_ops", "kind"): HostKind,
}


def data_frame(trace: Trace, table: str) -> pd.DataFrame:
    """One table of `trace` as a DataFrame.

    `start` and `end` stay int64 nanoseconds. Dictionary codes become pandas categoricals (a
    code of -1 becomes NaN) and enum columns become lower-case names.

    Raises:
        HostgapError: there is no such table.
    """
    import pandas as pd

    if table not in TABLES:
        raise HostgapError(f"no table {table!r}", f"tables: {', '.join(TABLES)}")
    rows = getattr(trace, table)
    out: dict[str, object] = {}
    for name, column in rows.columns():
        if name in rows.dictionaries:
            entries = [str(entry) for entry in getattr(trace, rows.dictionaries[name])]
            # two entries may read alike (device 0 and device "0"); categories must be unique
            labels, codes = np.unique(np.array(entries, dtype=object), return_inverse=True)
            decoded = np.where(column >= 0, np.append(codes, -1)[column], -1)
            out[name] = pd.Categorical.from_codes(decoded.tolist(), pd.Index(labels))
        elif (table, name) in _ENUMS:
            members = [member.name.lower() for member in _ENUMS[table, name]]
            out[name] = pd.Categorical.from_codes(column.tolist(), pd.Index(members))
        else:
            out[name] = column
    return pd.DataFrame(out)
