from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostgap.analysis.causes import host_cause, is_user_frame
from hostgap.trace.scrub import Scrubber, decoded, is_sensitive, names_somebody

GENERATED = "chie4if7af343oyphzdajhazquextcbypid3dsq62l7feujdkdty.py"
KEPT = [
    "aten::div",
    "aten::div_",
    "cudaLaunchKernel",
    "cudaStreamSynchronize",
    "hipExtModuleLaunchKernel",
    "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::"
    "(anonymous namespace)::OpaqueType<2u>, unsigned int, 3, 64, 64>"
    "(at::native::OpaqueType<2u>*, int, unsigned int)",
    "void thrust::operator/<float>(float, float)",
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, (1)/(2)>(a / b)",
    "at::native::{lambda()#2}::operator()() const::{lambda()#4}::operator()() const::{lambda()#1}",
    "triton_poi_fused__to_copy_add_mul_0",
    "## Call CompiledFxGraph fyzmmikkhz3r4nhlhxahqhyodnwqincncux5x7hsbnrlejv ##",
    "nn.Module: Linear_0",
    "<built-in method item of Tensor object at 0x7f1b84a00200>",
    "<frozen importlib._bootstrap>(1007): _find_and_load",
    "<string>(1): <module>",
    "decode.py(74): step",
    "torch/nn/modules/module.py(1553): _call_impl",
    "vllm/v1/worker/gpu_model_runner.py(1200): execute_model",
    "threading.py(99): wait",
    "Memcpy HtoD (Pageable -> Device)",
    "Optimizer.step#AdamW.step",
    "ProfilerStep#17",
    "nccl:all_reduce",
    "c10d::allreduce_",
    "execute_context_2(512)_generation_14(14)",
    "step[DECODE bs=16]",
    "INFO:2024-04-03 18:51:35 1102:1102 CuptiActivityProfiler.cpp:907] Enabling GPU tracing",
    "cpu:gloo,cuda:gloo",
    "NVIDIA H100 80GB HBM3",
    "XBLOCK=8192,waves_per_eu=2",
    "0x7f5ac0c92000",
    "1712195495505540.100",
    "2.25.1",
    "nvidia-cublas-cu12==12.4.5.8",
    "[[4096, 1024], []]",
    "0000:1a:00.0",
    "q/k/v projection, 1/2",
    "Torch-Compiled Region: 0/0",
    "VLLM::EngineCore",
    "policy.net",
    "torch.compile",
    "stream 7",
    "python3.11",
]


@pytest.mark.parametrize("name", KEPT)
def test_keeps_what_the_analysis_and_the_reader_need(name: str) -> None:
    raw = json.dumps(name)[1:-1].encode()
    assert Scrubber(["trainer-17"], ["hunter2"]).token(raw) is raw


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "/home/alice/venv/lib/python3.11/site-packages/torch/nn/modules/module.py(1553): f",
            "site-packages/torch/nn/modules/module.py(1553): f",
        ),
        ("/usr/lib/python3/dist-packages/six.py(3): f", "dist-packages/six.py(3): f"),
        ("/usr/lib/python3.12/threading.py(99): wait", "lib/python3.12/threading.py(99): wait"),
        (r"C:\Python311\Lib\threading.py(99): wait", "dir1/Python311/Lib/threading.py(99): wait"),
        ("/home/alice/git/llm/decode.py(74): step", "dir1/decode.py(74): step"),
        ("/home/Alice Smith/My Work/run 1.py(3): <module>", "dir1/run 1.py(3): <module>"),
        (r"C:\Users\Alice Smith\llm\decode.py(74): step", "dir1/decode.py(74): step"),
        (r"\\nas\alice\llm\decode.py(74): step", "dir1/decode.py(74): step"),
        ("~alice/decode.py(74): step", "dir1/decode.py(74): step"),
        ("../alice/decode.py(74): step", "dir1/decode.py(74): step"),
        ("file:///home/alice/decode.py(74): step", "dir1/decode.py(74): step"),
        (
            "/srv/a.py(1): f;/opt/v/lib/python3.9/site-packages/x/y.py(2): g;main.py(3): <module>",
            "dir1/a.py(1): f;site-packages/x/y.py(2): g;main.py(3): <module>",
        ),
        (
            "void k<{lambda at /home/alice smith/k.cu:12:3}>()",
            "void k<{lambda at dir1/k.cu:12:3}>()",
        ),
        ("<eval>.12 from /home/al/x.py:9 in f(5): g", "<eval>.12 from dir1/x.py:9 in f(5): g"),
        ("/tmp/torchinductor_alice/x/chie4.py", "dir1/chie4.py"),
        (f"/tmp/torchinductor_alice/hi/{GENERATED}", f"dir1/hi/{GENERATED}"),
        ("/ws/al/pytorch/torch/_inductor/x/y.py(3): f", "dir1/torch/_inductor/x/y.py(3): f"),
        ("/ws/al/vllm/v1/worker/r.py(3): f", "dir1/vllm/v1/worker/r.py(3): f"),
        ("/ws/torch/alice/utils/r.py(3): f", "dir1/utils/r.py(3): f"),
        ("saved to /home/alice", "saved to dir1"),
        ("cd x/home/alice/y", "cd x/home/redacted/y"),
        ("./logs/alice-laptop_42.pt.trace.json", "dir1"),
        ("python3 -m vllm.entrypoints --api-key abc /data", "python"),
        ("/usr/bin/python3.11 /home/alice/train.py", "python"),
        ("thread 12 (python3 -m alice.train)", "thread 12 (python)"),
        ("serve llama --api-key abc", "redacted command"),
        ("HOME=/home/alice", "HOME=redacted"),
        ("GREETING=hello from alice", "GREETING=redacted"),
        ("DB_PASSWORD=12345", "DB_PASSWORD=redacted"),
        ("HF_TOKEN=1,XBLOCK=2", "HF_TOKEN=redacted"),
        ("got hf_abcdefghijABCDEFGHIJ0123456789", "got redacted"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer redacted"),
        ("api_key: abc123", "api_key: redacted"),
        ("s3://acme-models/llm/7b", "s3://redacted"),
        ("https://alice:pw@git.acme.example/x.git", "https://redacted"),
        ("tcp://10.1.2.3:29500", "tcp://redacted"),
        ("from alice@acme-labs", "from redacted"),
        ("mail alice.smith@acme.example", "mail redacted"),
        ("connect to 10.1.2.3:29500", "connect to redacted:29500"),
        ("bound to fe80::1ff:fe23:4567:890a", "bound to redacted"),
        ("bound to 2001:db8::7", "bound to redacted"),
        ("ether 02:42:ac:11:00:02", "ether redacted"),
        ("rank 3 on gpu17.pnb3.acme.com:", "rank 3 on redacted:"),
        ("rank 3 on ip-10-0-3-4.ec2.internal", "rank 3 on redacted"),
        ("git@github.com:acme/llm.git", "redacted"),
        ("from git@github.com:acme/llm.git@main", "from redacted@main"),
        ("see github.com/acme/llm (3)", "see redacted (3)"),
        ("rank@node-7:29500", "redacted:29500"),
        ("%2Fhome%2Falice%2Fy", "dir1"),
        ("C%3A%5CUsers%5Calice%5Cdecode.py", "dir1/decode.py"),
        ("open %2fdata%2fx%20y%2f1", "open dir1"),
        ('{"user": "alice", "n": 3}', '{"user": "redacted", "n": 3}'),
        ("{'host_name': 'gpu17', 'size': 'large'}", "{'host_name': 'redacted', 'size': 'large'}"),
        ('{\\"hf_token\\":\\"zq9\\"}', '{\\"hf_token\\":\\"redacted\\"}'),
        ("GPU-5c8f1f0e-31d6-410f-83cf-8827e227851d", "redacted"),
    ],
)
def test_replaces(text: str, expected: str) -> None:
    assert Scrubber().text(text) == expected


def test_two_folders_never_become_one_and_one_stays_one() -> None:
    scrub = Scrubber()
    names = [
        "/home/alice/a/run.py(1): f",
        "/home/alice/b/run.py(1): f",
        "/home/alice/a/run.py(1): g",
        "/v1/lib/python3.11/site-packages/torch/x.py(1): f",
        "/v2/lib/python3.11/site-packages/torch/x.py(1): f",
        "/v1/lib/python3.11/os.py(1): f",
        "/v2/lib/python3.11/os.py(1): f",
        "/data/one",
        "/data/two",
    ]
    clean = [scrub.text(name) for name in names]
    assert len(set(clean)) == len(names)
    assert clean[0].split("/")[0] == clean[2].split("/")[0]
    assert [scrub.text(name) for name in names] == clean
    assert all("site-packages/torch/" in name for name in clean[3:5])
    assert all("lib/python3.11/" in name for name in clean[5:7])


def test_words_of_hosts_and_people() -> None:
    scrub = Scrubber(["Trainer-17.acme.lan", "alice", "root", "python", "12345"])
    assert scrub.text("on TRAINER-17 as Alice") == "on redacted as redacted"
    assert scrub.text("trainer-17_851.json") == "redacted_851.json"
    assert scrub.text("malice::kernel root python 12345") == "malice::kernel root python 12345"
    assert scrub.text("/x/y/alice_run.py(3): f") == "dir1/redacted_run.py(3): f"
    assert scrub.learn("bob-desktop")
    assert not scrub.learn("bob-desktop")
    assert not scrub.learn("worker")
    assert scrub.text("bob-desktop") == "redacted"


@pytest.mark.parametrize(
    "path",
    [
        "/home/zebediah/llm/decode.py(74): step",
        "/mnt/nfs/Users/zebediah/x",
        r"C:\Users\zebediah\x.py(3): f",
        "%2Fhome%2Fzebediah%2Fy",
        '{"user": "zebediah"}',
    ],
)
def test_whose_home_folder_it_is_is_learned(path: str) -> None:
    scrub = Scrubber()
    scrub.token(json.dumps(path)[1:-1].encode())
    for text, expected in (
        ("CPU gpu17 zebediah", "CPU gpu17 redacted"),
        ("[memory] zebediah", "[memory] redacted"),
        ("zebediah_group", "redacted_group"),
    ):
        assert scrub.token(text.encode()) == expected.encode()


def test_what_is_nobodys_home_folder_is_not_learned() -> None:
    scrub = Scrubber()
    for path in ("/home/ubuntu/x.py", "/home/train.py", "/home/ab/x.py", "/opt/decoding/x.py"):
        scrub.token(path.encode())
    assert scrub.words == set()


def test_also_hits_inside_words_but_not_the_format_itself() -> None:
    scrub = Scrubber(also=["acme", "kernel", "aten", "name"])
    assert scrub.text("AcmeDecoder.forward") == "redactedDecoder.forward"
    for word in (
        "kernel",
        "name",
        "aten::add",
        "cudaLaunchKernel",
        "ProfilerStep#3",
        "traceEvents",
    ):
        assert scrub.token(word.encode()) == word.encode()


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (rb"C:\\Users\\x", r"C:\Users\x"),
        (rb"C:\envs\torch", r"C:\envs\torch"),
        (rb"C:\temp\nancy", r"C:\temp\nancy"),
        (rb"\u002fhome\u002falice", "/home/alice"),
        (rb"\/home\/alice", "/home/alice"),
        (b"caf\xc3\xa9", "café"),
        (b"k\xb0\xff", "k\ufffd\ufffd"),
        (rb"a\tb", "a\tb"),
    ],
)
def test_decodes_what_traces_hold(raw: bytes, text: str) -> None:
    assert decoded(raw) == text


@pytest.mark.parametrize(
    "raw",
    [
        rb"C:\\Users\\alice\\x.py(3): f",
        rb"C:\users\nancy\alice\x.py(3): f",
        rb"C:\temp\alice\x.py(3): f",
        rb"\u002fhome\u002falice\u002fx.py(3): f",
        rb"\/home\/alice\/x.py(3): f",
        b"/home/alice/\xff\xfe/x.py(3): f",
        "/home/alice/日本/x.py(3): f".encode(),
    ],
)
def test_escaped_paths(raw: bytes) -> None:
    assert json.loads(b'"' + Scrubber().token(raw) + b'"') == "dir1/x.py(3): f"


def test_sensitive_keys() -> None:
    for key in ("host_name", "hostname", "username", "tw_job", "mast_job_name", "env", "HOME"):
        assert is_sensitive(key), key
    for key in ("trace_id", "traceName", "group_trace_id", "cmdline", "argv", "SLURM_NODELIST"):
        assert is_sensitive(key), key
    for key in ("name", "labels", "pg_name", "ranks", "world_size", "two", "Trace name", "device"):
        assert not is_sensitive(key), key
    for key in ("token", "api_token", "wandb_api_key", "hf_token", "hfToken", "HFToken", "API-KEY"):
        assert is_sensitive(key), key
    for key in ("access_key", "secret", "db.password", "auth-cookie", "key2", "wandbapikey", "pwd"):
        assert is_sensitive(key), key
    for key in ("tokens", "max_tokens", "TOKENIZERS_PARALLELISM", "monkey", "author", "key_size"):
        assert not is_sensitive(key), key
    assert names_somebody("host_name")
    assert not names_somebody("env")


# What Kineto, Chrome's format and torch's own annotations call their members.
FORMAT_KEYS = """
Addr|Bytes|Call stack|Collective name|Concrete Inputs|Device Id|Device Type|Dst Rank|Ev Idx
External id|Fwd thread id|Group size|In msg nelems|In split size|Input Dims|Input Strides
Input type|Kwinputs|Module Hierarchy|Out msg nelems|Process Group Description|Process Group Name
Process Group Ranks|Profiler Event Index|Python id|Python module id|Python parent id
Python thread|Record function id|Rank|Sequence number|Total Allocated|Total Reserved
Trace iteration|Trace name|blocks per SM|cbid|correlation|device|dtype|dur
est. achieved occupancy %|grid|kernel_backend|kernel_file|kernel_hash|kernel_kwargs|graph id
graph node id|hwDecoderId|memory bandwidth (GB/s)|num_warps|ph|pid|queued|registers per thread
roofline|shared memory|stream|tid|ts|wait_on_cuda_event_id|wait_on_stream|warps per SM
correlation id
""".replace("\n", "|").strip("|")


def test_the_keys_of_the_format_are_not_sensitive() -> None:
    assert [key for key in FORMAT_KEYS.split("|") if is_sensitive(key)] == []


LONG = [
    *("ip-1-1-1-1-", "a-", "a.", "a1.", "w" * 50 + ".", '("', ' "', "[", "(", "eyJaaaaaaaa."),
    *("\\", "'a':'", "%2F", "/home/", "/home/a/", "a@a.com/1", "a@a:a/"),
    *("-eyJ", "/a b c ", '("/a b c d', "a://", "a@a.", "(python ", "secret ", "(1", "a:", "../"),
    *(
        "AAA=",
        "x.so.1.1",
        "~a~",
        "bearer ",
        "://",
        "-/",
        "\\\\a\\",
        "lib/python3",
        "C:/",
        "::ffff:1.",
    ),
]


@pytest.mark.parametrize("tail", ["", "/", "=", "/python", "!"])
def test_a_long_string_does_not_take_minutes(tail: str) -> None:
    """In a process of its own, as a regular expression cannot be interrupted from within."""
    work = (
        "import sys, json; from hostgap.trace.scrub import Scrubber\n"
        "for unit in json.loads(sys.argv[1]):\n"
        "    Scrubber(['trainer-17']).text(unit * (200_000 // len(unit)) + sys.argv[2])\n"
    )
    command = [sys.executable, "-c", work, json.dumps(LONG), tail]
    subprocess.run(command, check=True, timeout=60)  # 2 to 4 s; quadratic: 20 s for one of them


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run (python3 -m alice", "run (python)"),
        ("run (/opt/x/python3 -m alice", "run python"),
        ("a /opt/alice/python x.py", "a python"),
        (r"C:\\alice\\python.exe x.py", "python"),
        ("cxxpython x.py", "cxxpython x.py"),
        ("see s3://alice and file:///home/alice/x.py", "see s3://redacted and dir1/x.py"),
    ],
)
def test_command_lines_and_addresses_inside_text(text: str, expected: str) -> None:
    assert Scrubber().text(text.replace("\\\\", "\\")) == expected


IDENTIFIER = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
SCOPED = st.lists(IDENTIFIER, min_size=1, max_size=5).map("::".join)


@st.composite
def cpp_name(draw: st.DrawFn) -> str:
    """Something like a demangled kernel: scopes, templates, operators, lambdas, arguments."""
    name = draw(SCOPED)
    if draw(st.booleans()):
        name += "::operator" + draw(st.sampled_from(["/", "()", "*", "==", "->", "/=", "[]", "%"]))
    argument = st.one_of(
        SCOPED,
        st.integers(0, 4096).map(str),
        st.sampled_from(["(1)/(2)", "{lambda(int, bool)#1}", "float const&", "128 / 4", "(bool)0"]),
    )
    if draw(st.booleans()):
        name += "<" + ", ".join(draw(st.lists(argument, min_size=1, max_size=4))) + ">"
    if draw(st.booleans()):
        name = "void " + name
    if draw(st.booleans()):
        name += "(" + ", ".join(draw(st.lists(argument, max_size=4))) + ")"
    return name


@given(cpp_name())
def test_kernel_names_survive(name: str) -> None:
    raw = name.encode()
    assert Scrubber().token(raw) == raw


@given(IDENTIFIER, st.sampled_from(["aten::", "cuda", "triton_poi_fused_", "nn.Module: ", "hip"]))
def test_op_and_api_names_survive(name: str, prefix: str) -> None:
    raw = (prefix + name).encode()
    assert Scrubber().token(raw) == raw


def words(text: str) -> list[str]:
    return text.split()


PART = st.one_of(
    st.sampled_from(
        words("""
        torch triton numpy zmq site-packages dist-packages torchinductor_al lib python3.12 Lib
        Python311 _inductor _dynamo utils data distributed fsdp compiler runtime concurrent home
        futures multiprocessing alice tmp torchinductor .. . x queue threading lib64 functorch
        """)
    ),
    st.from_regex(r"[a-z]{1,6}|[a-z2-7]{2}", fullmatch=True),
)
FILE = st.just(GENERATED) | st.sampled_from(
    words("""
    queue.py threading.py codecache.py graph.py compile_fx.py dataloader.py convert_frame.py
    connection.py _base.py shm_broadcast.py triton_heuristics.py jit.py decode.py x.so
    """)
)
FUNCTION = st.sampled_from(
    words("get wait join result recv poll barrier compile_fx __next__ step acquire_read autotune")
)


@settings(max_examples=1000)
@given(st.sampled_from(["/", "C:/", "./", "../"]), st.lists(PART, max_size=6), FILE, FUNCTION)
def test_the_analysis_sees_the_same_kind_of_frame(
    root: str, parts: list[str], file: str, function: str
) -> None:
    if file == GENERATED and parts[-1:] in ([".."], ["."]):
        parts = [*parts, "x"]  # "ab/./c....py" is not written by anybody
    path = root + "/".join([*parts, file])
    before = f"{path}(12): {function}"
    after = Scrubber().text(before)
    assert is_user_frame(after) == is_user_frame(before), after
    assert host_cause(after, frame=True) == host_cause(before, frame=True), after


FOLDER = st.text(
    st.characters(exclude_characters='/\\;\n()"', exclude_categories=("C", "Z")),
    min_size=1,
    max_size=8,
).filter(lambda s: s.strip("."))


@given(st.lists(FOLDER, min_size=1, max_size=4), IDENTIFIER, st.integers(1, 9999))
def test_no_folder_of_a_frame_survives(folders: list[str], function: str, line: int) -> None:
    path = "/zq17" + "/zq17".join(folders)
    assert (
        Scrubber().text(f"{path}/step.py({line}): {function}")
        == f"dir1/step.py({line}): {function}"
    )


@given(st.text())
def test_the_result_is_always_the_inside_of_a_json_string(text: str) -> None:
    raw = json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "replace")
    clean = Scrubber().token(raw)
    json.loads(b'"' + clean + b'"')
