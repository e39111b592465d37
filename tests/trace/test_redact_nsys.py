from __future__ import annotations

import io
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import hostgap
from hostgap.cli import cli
from hostgap.errors import HostgapError, TraceError
from hostgap.trace.redact import redact

ROOT = Path(__file__).parents[2]
SAMPLES = sorted((ROOT / "sample_traces").glob("*.sqlite"))
REAL = sorted((ROOT.parent / "shared" / "cases" / "nsys").glob("*.sqlite"))

KERNEL_NAME = "void at::native::<unnamed>::elementwise_kernel<(int)128, at::Func<float>>(int, T2)"
ENVIRONMENT = "HF_TOKEN=hunter2-token\0HOME=/home/alice.smith\0LOGNAME=alice.smith\0X=1\0"
PID = (1 << 48) + (4242 << 24)
STRINGS = {
    1: "cudaLaunchKernel_v7000",
    2: KERNEL_NAME,
    3: "elementwise_kernel",
    4: ENVIRONMENT,
    5: "/home/alice.smith/secretproject/train.py",
    6: "/opt/secretproject/lib/libsecret.so.3",
    7: "pt_main_thread",
    8: "acme-agent",
    9: "loss 0.3 of acmecorp run",
    10: '{"acme-payload": 1}',
    11: "decode",
    12: "read /data/secretproject/shard.bin",
    13: "torch::autograd::Node",
    14: "A_KEY=acme-a\nB_KEY=acme-b\nCC=acme-c",
    15: "aten::add, seq = 12",
}
SECRETS = [
    "hunter2",
    "alice",
    "secretproject",
    "trainer-17",
    "acme",
    "shard.bin",
    "10.7.6.5",
    "6a7bf211",
    "/home",
    "/opt",
    "/data",
    "deadbeef",
    "Europe",
    "old text",
]


def build(path: Path, extra: str = "") -> Path:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(
            """
            CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,
                streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER,
                shortName INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER,
                globalTid INTEGER, correlationId INTEGER, nameId INTEGER);
            CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT,
                globalTid INTEGER, textId INTEGER, jsonTextId INTEGER, jsonText TEXT,
                binaryData BLOB);
            CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
            CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
            CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT, name TEXT,
                nameEnum INTEGER, value TEXT);
            CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, localTime TEXT);
            CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, busLocation TEXT, uuid TEXT);
            CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
            CREATE TABLE ThreadNames (nameId INTEGER, priority INTEGER, globalTid INTEGER);
            CREATE TABLE ProcessStreams (globalPid INTEGER, filenameId INTEGER, contentId INTEGER);
            CREATE TABLE ANALYSIS_FILE (id INTEGER PRIMARY KEY, filename TEXT, contentId INTEGER);
            CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, text TEXT);
            CREATE TABLE OSRT_FILE_ACCESS_DESCRIPTORS (fileAccessId INTEGER, filePath TEXT);
            CREATE TABLE OSRT_CALLCHAINS (id INTEGER, symbol INTEGER, module INTEGER);
            CREATE TABLE ENUM_NSYS_EVENT_TYPE (id INTEGER, name TEXT);
            """
        )
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", STRINGS.items())
        for i in range(5):
            start = 1000 + 10_000 * i
            tid = PID + 4242
            call = (start, start + 500, tid, i + 1, 1)
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?)", call)
            kernel = (start + 900, start + 3000, 0, 7, i + 1, PID, 2, 3)
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?,?,?,?)", kernel)
            step = (start - 100, start + 5000, 59, f"step#{i}", tid, None, 10, '{"a": "acme"}')
            db.execute("INSERT INTO NVTX_EVENTS VALUES (?,?,?,?,?,?,?,?,x'DEADBEEF')", step)
            nvtx = (start, start + 600, 59, None, tid, (11, 15, 12, 5, 11)[i])
            db.execute("INSERT INTO NVTX_EVENTS VALUES (?,?,?,?,?,?,NULL,NULL,NULL)", nvtx)
        rows: dict[str, list[tuple[Any, ...]]] = {
            "META_DATA_CAPTURE": [
                ("DEVICE_DISPLAY_NAME", "trainer-17"),
                ("PROCESS_0:COMMAND", "python3"),
                ("PROCESS_0:ARGUMENT_0", "acme.py"),
                ("PROCESS_0:ARGUMENT_1", "hunter2"),
                ("PROCESS_0:WORKING_DIR", "/home/alice.smith"),
                ("PROCESS_0:ENVIRONMENT_VARIABLE", 'HF_TOKEN="hunter2-token"'),
                ("PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", "Node"),
                ("PROCESS_0:COLLECT_CUDA_TRACE", "true"),
                ("SOMETHING_NEW", "acme"),
            ],
            "META_DATA_EXPORT": [
                ("EXPORT_SCHEMA_VERSION", "3.20.3"),
                ("EXPORT_PRODUCT_VERSION", "2025.3.2.0"),
                ("EXPORT_HOST", "trainer-17"),
                ("EXPORT_USER", "alice.smith"),
                ("EXPORT_PARAM_INPUT_PATH_ABS", "/home/alice.smith/x.nsys-rep"),
                ("EXPORT_TIME_LOCAL", "noon Europe/Berlin"),
            ],
            "TARGET_INFO_SYSTEM_ENV": [
                (1, "ssh alice.smith@trainer-17", "CpuCores", 1, "16"),
                (1, "Local (CLI)", "DeviceEnvironment", 610, "A=hunter2;B=2"),
                (1, "Local (CLI)", "Hostname", 619, "trainer-17"),
                (1, "Local (CLI)", "NvDriverVersion", 205, "580.159.04"),
                (1, "Local (CLI)", "NicInfo", 910, '{"ip": "10.7.6.5"}'),
            ],
            "TARGET_INFO_SESSION_START_TIME": [(17, "noon, Europe")],
            "TARGET_INFO_GPU": [(0, "NVIDIA H200", "0000:00:06.0", "6a7bf211-1eda-7c50-4b1e")],
            "PROCESSES": [
                (PID, 4242, "python3 /home/alice.smith/train.py --key hunter2"),
                (PID + (1 << 24), 4243, "acme-daemon"),
            ],
            "ThreadNames": [(7, 20, PID + 4242), (8, 20, PID + (1 << 24) + 4243)],
            "ProcessStreams": [(PID, 5, 9)],
            "ANALYSIS_FILE": [(0, "secretproject/out.log", 9)],
            "DIAGNOSTIC_EVENT": [
                (0, "Not all CUDA events might have been collected."),
                (1, "see /home/alice.smith/secretproject/streams/out.log for output"),
            ],
            "OSRT_FILE_ACCESS_DESCRIPTORS": [(1, "secretproject/shard.bin"), (2, "/data/x/y.bin")],
            "OSRT_CALLCHAINS": [(1, 13, 6)],
            "ENUM_NSYS_EVENT_TYPE": [(59, "NvtxPushPopRange")],
        }
        for table, values in rows.items():
            marks = ",".join("?" * len(values[0]))
            db.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
        db.executescript(extra)
        db.commit()
    return path


def figures(path: Path) -> dict[str, Any]:
    found = msgspec.to_builtins(hostgap.analyze(hostgap.load_trace(path)))
    found["trace"].pop("file")
    return dict(found)


def table(path: Path, name: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(f"SELECT * FROM {name}").fetchall()


def leaks(path: Path) -> list[str]:
    data = path.read_bytes().lower()
    return [secret for secret in SECRETS if secret.lower().encode() in data]


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return build(tmp_path / "in.sqlite")


def test_secrets_are_nowhere_in_the_bytes(export: Path, tmp_path: Path) -> None:
    before = export.read_bytes()
    assert set(leaks(export)) > {"hunter2", "alice", "acme"}
    out = tmp_path / "out.sqlite"
    done = redact(export, out)
    assert leaks(out) == []
    assert done.changed > 20
    assert export.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.sqlite", "out.sqlite"]


def test_a_name_known_from_paths_goes_everywhere(tmp_path: Path) -> None:
    export = build(
        tmp_path / "in.sqlite",
        "INSERT INTO StringIds VALUES (90, 'zebediah step'), (91, '/home/zebediah/x.py');"
        "INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, textId) "
        f"VALUES (1000, 1500, 59, {PID + 4242}, 90);",
    )
    out = tmp_path / "out.sqlite"
    redact(export, out)
    assert dict(table(out, "StringIds"))[90] == "redacted step"
    assert b"zebediah" not in out.read_bytes()


def test_what_the_analysis_needs_stays(export: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.sqlite"
    redact(export, out)
    for name in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "ThreadNames"):
        assert table(out, name) == table(export, name)
    strings = dict(table(out, "StringIds"))
    assert {i for i in STRINGS if strings[i] == STRINGS[i]} == {1, 2, 3, 7, 11, 13, 15}
    assert strings[4] == strings[8] == strings[9] == strings[10] == strings[14] == "redacted"
    assert strings[5].endswith("/train.py")
    capture, versions = (dict(table(out, f"META_DATA_{t}")) for t in ("CAPTURE", "EXPORT"))
    assert capture["PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE"] == "Node"
    assert capture["PROCESS_0:COLLECT_CUDA_TRACE"] == "true"
    assert capture["PROCESS_0:COMMAND"] == "redacted"
    assert versions["EXPORT_SCHEMA_VERSION"] == "3.20.3"
    assert versions["EXPORT_PRODUCT_VERSION"] == "2025.3.2.0"
    assert table(out, "TARGET_INFO_GPU") == [(0, "NVIDIA H200", "0000:00:06.0", "redacted")]
    assert table(out, "ENUM_NSYS_EVENT_TYPE") == [(59, "NvtxPushPopRange")]
    assert [row[3] for row in table(out, "NVTX_EVENTS")][::2] == [f"step#{i}" for i in range(5)]
    before, after = (hostgap.load_trace(path) for path in (export, out))
    assert (after.gpu_ops.start == before.gpu_ops.start).all()
    assert after.devices == before.devices
    assert after.threads == before.threads


def test_figures_stay(export: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.sqlite"
    with closing(sqlite3.connect(export)) as db:  # paths in annotations change, and may
        db.execute("UPDATE NVTX_EVENTS SET textId = 11 WHERE textId IN (5, 12)")
        db.commit()
    redact(export, out)
    assert figures(out) == figures(export)


@pytest.mark.parametrize("path", [*SAMPLES, *REAL], ids=lambda path: path.name)
def test_figures_of_real_exports_stay(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.sqlite"
    redact(path, out)
    assert figures(out) == figures(path)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_samples_are_redacted(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.sqlite"
    assert redact(path, out).changed == 0
    data = path.read_bytes()
    for secret in (b"/root", b"/opt/", b"/tmp/", b"/home", b"HOME=", b"PATH=", b"PWD="):
        assert secret not in data


def test_more_words(export: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.sqlite"
    redact(export, out, also=["decode"])
    assert b"decode" not in out.read_bytes()


@pytest.mark.parametrize(
    "extra",
    [
        "CREATE TABLE Odd (a, b BLOB NOT NULL, [select] TEXT, UNIQUE (a));"
        "INSERT INTO Odd VALUES ('/home/alice.smith/x', x'00deadbeef', 'on trainer-17');",
        "CREATE TABLE Odd (a TEXT PRIMARY KEY, b) WITHOUT ROWID;"
        "INSERT INTO Odd VALUES ('/home/alice.smith', 'alice.smith');",
        "CREATE TABLE Odd (a TEXT CHECK (a LIKE '/h%'), b AS (a || 'x'));"
        "INSERT INTO Odd VALUES ('/home/alice.smith');",
        "CREATE TABLE Log (a TEXT); CREATE TRIGGER t AFTER UPDATE ON StringIds BEGIN"
        " INSERT INTO Log VALUES ('old text ' || old.value); END;",
        "CREATE INDEX i ON StringIds (value); ANALYZE;",
        "CREATE VIEW v AS SELECT '/home/alice.smith' AS a;",
        "INSERT INTO StringIds VALUES (99, CAST(x'ff2f686f6d652f616c6963652e736d6974682f78ff' "
        "AS TEXT));",
        "INSERT INTO StringIds VALUES (99, x'DEADBEEF');"
        "INSERT INTO ThreadNames VALUES ('a', 1, 'b')",
        "DROP TABLE PROCESSES; DROP TABLE ThreadNames; DROP TABLE META_DATA_CAPTURE;",
        "CREATE TABLE Old (a); INSERT INTO Old VALUES ('old text of alice.smith'); DROP TABLE Old;",
        "ALTER TABLE META_DATA_CAPTURE RENAME COLUMN value TO content;",
        "PRAGMA journal_mode = WAL;",
    ],
)
def test_odd_schemas(extra: str, tmp_path: Path) -> None:
    path = build(tmp_path / "in.sqlite", extra)
    out = tmp_path / "out.sqlite"
    redact(path, out)
    left = leaks(out)
    if "content" in extra or "DROP TABLE ThreadNames" in extra:
        # what is unknown loses what looks like a secret; other words are not told apart
        left = [word for word in left if word not in ("hunter2", "acme")]
    assert left == []
    hostgap.load_trace(out)
    assert {p.name for p in tmp_path.iterdir()} == {"in.sqlite", "out.sqlite"}


def no_export(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE moz_places (url TEXT)")


def damaged(path: Path) -> None:
    build(path)
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)


@pytest.mark.parametrize("make", [no_export, damaged])
def test_refuses_other_databases(make: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "in.sqlite"
    make(path)
    with pytest.raises(TraceError):
        redact(path, tmp_path / "out.sqlite")
    assert [p.name for p in tmp_path.iterdir()] == ["in.sqlite"]


def test_refuses_reports_and_compression(export: Path, tmp_path: Path) -> None:
    report = tmp_path / "x.nsys-rep"
    report.write_bytes(b"\0" * 64)
    with pytest.raises(TraceError, match="SQLite export"):
        redact(report, tmp_path / "out.sqlite")
    with pytest.raises(HostgapError, match="not compressed"):
        redact(export, tmp_path / "out.sqlite.gz")


def test_command(export: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.sqlite"
    arguments = ["redact", str(export), "-o", str(out), "--also", "decode"]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    assert "of SQLite" in done.output
    assert CliRunner().invoke(cli, arguments).exit_code != 0
    assert CliRunner().invoke(cli, [*arguments, "--force"]).exit_code == 0
    assert leaks(out) == []


def test_into_a_device(export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext

    from hostgap.trace import redact_nsys

    class Device(io.BytesIO):
        name = "/dev/nowhere"

    stream = Device()
    monkeypatch.setattr(redact_nsys, "atomic_output", lambda *_, **__: nullcontext(stream))
    redact(export, tmp_path / "out.sqlite")
    out = tmp_path / "written.sqlite"
    out.write_bytes(stream.getvalue())
    assert leaks(out) == []
