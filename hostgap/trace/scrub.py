"""What in one string of a trace tells who recorded it and where, and what to write instead.

Paths lose their folders, but not what the analysis needs of them: files stay apart (every distinct
folder gets its own neutral name), and what is library code stays recognisable as such. Names of
kernels, ops and API calls hold none of these patterns and come through byte for byte.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable
from urllib.parse import unquote

from hostgap.trace.vocabulary import TORCH_PACKAGES

REDACTED = "redacted"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Keys whose whole value goes, objects and lists included; compared without case and punctuation.
_SENSITIVE_KEYS = _words(
    """
    accesstoken address airmattribution apikey argv authtoken cmdline command commandline cwd email
    env environ environment environmentvariables envvars fqdn gitremote grouptraceid hftoken home
    homedir host hostid hostip hostname ip ipaddr ipaddress jobid jobname logicalserversubtype login
    machineid macaddress masteraddr masteraddress node nodelist nodename password pcibusid pwd
    remote secret serial serialnumber startedby submitter sysargv traceid tracename uname user
    useremail userid username uuid workdir workingdir workingdirectory
    """
)
_SENSITIVE_PREFIXES = ("mast_", "slurm_", "tw_")
# ... whatever comes before them: `wandb_api_key`, `hfToken`, `db.password`, `auth-cookie-2`
_SENSITIVE_LAST = _words(
    "auth cookie credential credentials key passphrase passwd password pwd secret secrets token"
)
_SENSITIVE_ENDINGS = (
    *("accesskey", "accesstoken", "apikey", "apitoken", "authkey", "authtoken", "credentials"),
    *("hftoken", "passwd", "password", "privatekey", "secretkey", "sessiontoken"),
)
_LAST_WORD = re.compile(r"([A-Z]?[a-z]+|[A-Z]+(?![a-z]))[\W\d_]*\Z")
# ... and those whose value names a host or a person, to be found in other strings too.
_NAMING_KEYS = _words(
    "fqdn host hostname login masteraddr node nodename startedby submitter twuser user username"
)

# Words too common to be erased wherever they occur, even when they are somebody's name.
_COMMON = _words(
    """
    admin anonymous appuser attention azureuser batch build centos client cluster coder codespace
    common compile container cublas cudnn cutlass debian decode decoder default deploy developer
    device docker ec2-user embed engine executor fedora flash forward fused global graph guest
    hidden index infer inference input jenkins jovyan kernel launch layer layers linear linux llama
    local localhost localhost.localdomain login logits loss main master matmul memory mixed model
    models mpirun nobody node nvidia optimizer output prefill process profiler project projects
    public python python3 pytorch query redacted redhat reduce research runner sample sampler
    scratch server service sglang shared softmax spark stage state step storage stream student
    system tensor tester thread token torch trace train trainer transformer triton ubuntu unknown
    update user users value vector vllm vscode weight worker workspace
    """
)

# The words of the format itself and the names of calls and ops: never touched, whatever is asked.
_STRUCTURE = _words(
    """
    args baseTimeNanoseconds bp cat cpu_op cuda_driver cuda_runtime cuda_sync device
    deviceProperties displayTimeUnit distributedInfo dur gpu_memcpy gpu_memset gpu_user_annotation
    id kernel labels name overhead ph pid process_labels process_name process_sort_index
    python_function rank schemaVersion sort_index stream thread_name thread_sort_index tid
    traceEvents ts user_annotation
    """
)
# What a trace says of itself that is no secret, and all that hostgap reads of it.
_METADATA = _words(
    """
    baseTimeNanoseconds cuda_driver_version cuda_runtime_version cupti_version deviceProperties
    displayTimeUnit distributedInfo hip_driver_version hip_runtime_version profile_memory
    record_shapes schemaVersion torch_version traceEvents with_flops with_modules with_stack
    """
)
_API = re.compile(r"(?:cu|cuda|hip)[A-Z]\w*|(?:aten|c10d|prims|torch|nccl)::\w+|ProfilerStep#\d+")

_SOURCE_FILE = re.compile(
    r"[\w.@+ -]+\.(?:pyx?|pyi|pyc|ipynb|c|cc|cpp|cxx|cu|cuh|h|hpp|hip|rs|so(?:\.\d+)*|pyd|dll)",
    re.I,
)
_LIBRARY = (
    ("site", re.compile(r"(?:.*/)?()((?:site|dist)-packages/.+)", re.S)),
    ("std", re.compile(r"(?:.*?/)?(lib(?:64)?/python\d[\d.]*t?/)(.+)", re.S)),
)
# The standard library on Windows: Python311/Lib/threading.py
_PYTHON_HOME = re.compile(r"[Pp]ython\d*|(?:ana|mini)conda\d|Lib")
_GENERATED = re.compile(r"[a-z2-7]{2}/c[a-z2-7]{40,}\.py")  # by Inductor, named by its hash
_MARKERS = (
    (re.compile(r"\bzmq/"), "zmq"),
    (re.compile(r"(?:^|/)torch/distributed/"), "torch/distributed"),
    (re.compile(r"(?:^|/)triton/compiler/"), "triton/compiler"),
    (
        re.compile(r"(?:^|/)(?:site-packages|dist-packages)/|(?:^|/)lib/python\d[\d.]*/"),
        "site-packages",
    ),
)
_PUBLIC = TORCH_PACKAGES | _words(
    """
    _pytest accelerate asyncio attention backends bin collections compiler compressed_tensors
    concurrent core data deepspeed diffusers distributed email engine entrypoints executor
    flash_attn flashinfer functorch futures importlib json kernels language layers lib linalg
    managers mem_cache megatron model_executor models modules multiprocessing numpy nvtx ops pluggy
    python runtime sampling scripts sglang speculative src srt tests tools torch torchaudio
    torchvision tqdm transformers triton utils v1 vllm worker xformers zmq
    """
)

_SEG = r"[^\s/\\\"'<>|:;,()\[\]{}=*?&]"
_MORE = rf"(?:[/\\]+{_SEG}*| (?:[^\s/\\]+ ){{0,3}}[^\s/\\]+(?=[/\\]))*"
_POSIX = re.compile(
    rf"(?<![\w.~/\\)\]}}>-])(?:\.{{1,2}}/(?=[\w.])|~[\w.-]*/|/+(?=[\w.@~+-]{_SEG}*/)){_SEG}+{_MORE}"
)
_DRIVE = re.compile(rf"(?<![A-Za-z0-9])[A-Za-z]:[\\/]+{_SEG}+{_MORE}")
_UNC = re.compile(rf"(?<![\w\\])\\\\[\w.$-]+\\+{_SEG}+{_MORE}")
_BARE_BACKSLASH = re.compile(r"(?<![A-Za-z])[A-Za-z]:\\(?!\\)|^\\\\\w")
_HOME = re.compile(r"(?i)(?<=/)(home|users)/(?!redacted\b)[^\s/\\\"'<>|:;,()\[\]{}=*?&]+")
_OF_HOME = re.compile(
    r"(?i)[/\\](?:home|users)[/\\]+([^\s/\\\"'<>|:;,()\[\]{}=*?&]{1,64})(?=[/\\])"
)
_ENCODED = re.compile(r"(?i)(?:[a-z]%3A)?%(?:2F|5C)[\w.@~+%-]+")  # a path in an address
_ABSOLUTE = re.compile(r"[/~]|\.{1,2}[/\\]|[A-Za-z]:[\\/]|\\\\|file:", re.I)
_FRAME = re.compile(r"(?P<path>[^;\n]*?)(?P<line>\(-?\d+\))(?P<rest>(?:: [^;\n]*)?)", re.S)
_FRAMES_APART = re.compile(r"([;\n]\s*)")

# None of these may look far ahead from many places in a string: a long one would take minutes.
_PROGRAM = re.compile(
    r"(?<![^\s(\[\"'/\\])(?P<name>python|torchrun|vllm|sglang|accelerate|deepspeed"
    r"|ray|srun|mpirun|bash|sh|uv|node|java)[\d.]*w?(?:\.exe)?"
    r"(?=\s+(?:--?[A-Za-z]|\S*[/\\]|\S+\.(?:py|sh|js|jar)\b))"
)
_FLAG = re.compile(r"(?:^|\s)--[A-Za-z]")
_URL = re.compile(r"(?i)(?:(?<![a-z0-9+.-])(?P<file>file)|(?<=[a-z0-9+.-]))://[^\s\"'<>]*")
_NAME = r"[A-Z_][A-Z0-9_]{2,}"
_ASSIGNED = re.compile(rf"(?s)^({_NAME})=(.+)$|(?<![\w.:])({_NAME})=(?![=\s])([^\s;]+)")
_PLAIN = r"(?:[-+]?\d[\d.]*|(?i:true|false|none|null))"
_PLAIN_VALUE = re.compile(rf"{_PLAIN}(?:, ?\w+={_PLAIN})*")
_SECRET_NAME = re.compile(r"(?i)key|token|secret|passw|pwd|cred|auth|session|cookie")
_SECRET = re.compile(
    r"(?i)(?<![a-z0-9])((?:api[-_]?key|secret|passw(?:or)?d|credentials?|auth[-_]?token"
    r"|access[-_]?token|access[-_]?key|hf[-_]token|authorization)[\"']?\s*[=:]\s*[\"']?"
    r"(?:bearer\s+|basic\s+)?|\bbearer\s+)[^\s\"',;&]+"
)
# `"user": "alice"` in JSON, or in Python's own notation, that a string holds
_MEMBER = re.compile(
    r"""((\\{0,8}["'])(?P<key>[A-Za-z_][\w.-]{1,40})\2\s?:\s?(\\{0,8}["']))(?P<value>[^"'\\]{1,500})(?=\4)"""
)
_KEYLIKE = re.compile(
    r"\b(?:sk-[\w-]{16,}|hf_[A-Za-z0-9]{24,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}|AKIA[A-Z0-9]{12,}|xox[abprs]-[\w-]{10,}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{8,400}\.[\w-]{8,}\.[\w-]*|GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
)
# a repository or a folder behind a host: `git@github.com:acme/llm.git`, and no port
_BEHIND = r"(?:[:/](?=[\w.~/+-]*[A-Za-z~])[\w.~/+-]+)?"
_AT = re.compile(rf"(?<![\w.+@?-])[A-Za-z_][\w.+-]+@[A-Za-z0-9][\w-]*[\w](?:\.[\w-]+)*{_BEHIND}")
_DOMAIN = re.compile(
    r"(?i)(?<![\w.-])(?:(?:[a-z0-9-]+\.)+(?:com|org|edu|gov|localdomain|onion)"
    r"|(?=[a-z-]*[\d-])[a-z0-9-]+\.(?:[a-z0-9-]+\.)*(?:net|internal|intranet|corp|lan|local|cluster)"
    rf"|ip-\d+-\d+-\d+-\d+)(?![\w-]|\.\w){_BEHIND}"
)
_BYTE = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IPV4 = re.compile(rf"(?<![\w.])(?<!==)(?:{_BYTE}\.){{3}}{_BYTE}(?![\w.])")
_IPV6 = re.compile(
    r"(?i)(?<![\w:])(?:(?:[0-9a-f]{1,4}:){4,7}(?::?[0-9a-f]{1,4}){1,2}"
    r"|(?:fe80|f[cd][0-9a-f]{2}|2[0-9][0-9a-f]{2})(?::[0-9a-f]{1,4}){0,6}::"
    r"(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){0,6})?|::ffff:[\d.]+)(?![\w:])"
)
# One look at the bytes that spares most strings the rest.
_SUSPECT = re.compile(
    rb"[/\\@=~]|%[0-9a-fA-F]{2}|['\"]\s?:|--|://|[\w-]\.[A-Za-z]|\d\.\d|[0-9a-fA-F]:[0-9a-fA-F:]|(?i:sk-|hf_|gh._|akia|eyj|gpu-|ip-"
    rb"|xox|aiza|glpat|github_pat|bearer|passw|secret|credential|token|api.?key|auth)|python|\s-"
)


def is_sensitive(key: str) -> bool:
    """Whether the whole value under `key` is to be replaced."""
    if key == "Trace name":  # of a profiler span: "PyTorch Profiler", not the file's name
        return False
    plain = _plain(key)
    return (
        plain in _SENSITIVE_KEYS
        or key.lower().startswith(_SENSITIVE_PREFIXES)
        or plain.rstrip("0123456789").endswith(_SENSITIVE_ENDINGS)
        or ((last := _LAST_WORD.search(key)) is not None and last[1].lower() in _SENSITIVE_LAST)
    )


def is_structure(word: str) -> bool:
    """Whether `word` belongs to the format itself."""
    return word in _STRUCTURE


def is_metadata(key: str) -> bool:
    """Whether the value under `key` of the top-level object may stay."""
    return key in _METADATA or key in _STRUCTURE


def names_somebody(key: str) -> bool:
    """Whether the value under `key` is the name of a host or a person."""
    return _plain(key) in _NAMING_KEYS


def _plain(key: str) -> str:
    return re.sub(r"[\W_]+", "", key).lower()


class Scrubber:
    """Rewrites the strings of one trace, the same way wherever they occur.

    Args:
        words: names of hosts and people, replaced wherever they stand as a word of their own.
            Short and common words are left out: they would hit kernel names.
        also: text to replace wherever it occurs, inside words too, in any case.
    """

    def __init__(self, words: Iterable[str] = (), also: Iterable[str] = ()) -> None:
        self._places: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}
        self._also = [word for word in also if word]
        self.words: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        for word in words:
            self._add(word)
        self._compile()

    def learn(self, word: str) -> bool:
        """Add the name of a host or a person found in the trace; True if it is a new one."""
        before = len(self.words)
        self._add(word)
        if len(self.words) == before:
            return False
        self._compile()
        return True

    def learn_homes(self, text: str) -> None:
        """Add the names of people whose home folders are in `text`."""
        for name in _OF_HOME.findall(text):
            self.learn(name)

    def _add(self, word: str) -> None:
        candidates = {word.strip(), re.split(r"[.@]", word.strip())[0]}
        for name in candidates:
            if len(name) >= 5 and name.lower() not in _COMMON and re.search(r"[^\W\d_]", name):
                self.words.add(name.lower())

    def _compile(self) -> None:
        parts = [re.escape(word) for word in sorted(self._also, key=len, reverse=True)]
        whole = "|".join(re.escape(w) for w in sorted(self.words, key=len, reverse=True))
        if whole:
            parts.append(rf"(?<![^\W_])(?:{whole})(?![^\W_])")
        self._pattern = re.compile("|".join(parts), re.I) if parts else None

    def token(self, raw: bytes) -> bytes:
        """Rewrite what stands between the quotes of one JSON string.

        Args:
            raw: the bytes as in the file, escapes included.

        Returns:
            `raw` itself when there is nothing to hide, else a valid JSON string's inside.
        """
        if not raw:
            return raw
        suspect = _SUSPECT.search(raw) is not None
        if not suspect and self._pattern is None:
            return raw
        text = decoded(raw)
        if suspect:
            self.learn_homes(text)
        clean = self.text(text) if suspect else self._without_words(text)
        return raw if clean == text else json.dumps(clean)[1:-1].encode()

    def text(self, text: str) -> str:
        """Rewrite one string; returns it unchanged when there is nothing to hide."""
        if text in _STRUCTURE or _API.fullmatch(text):
            return text
        pieces = _FRAMES_APART.split(text)
        return "".join(self._piece(p) if i % 2 == 0 else p for i, p in enumerate(pieces))

    def _piece(self, text: str) -> str:
        """A frame `path(line): function` with an absolute path, or any other text."""
        frame = _FRAME.fullmatch(text)
        if frame and _ABSOLUTE.match(frame["path"]):
            place = self._without_words(self._place(frame["path"]))
            return f"{place}{frame['line']}{self._general(frame['rest'])}"
        return self._general(text)

    def _general(self, text: str) -> str:
        if not text:
            return text
        text = _without_command(text)
        if _FLAG.search(text):
            text = f"{REDACTED} command"
        text = _MEMBER.sub(self._member, text)
        text = _SECRET.sub(rf"\1{REDACTED}", text)
        text = _KEYLIKE.sub(REDACTED, text)
        text = _ASSIGNED.sub(_assigned, text)
        text = _URL.sub(self._url, text)
        text = _ENCODED.sub(self._encoded, text)
        for pattern in (_UNC, _DRIVE, _POSIX):
            text = pattern.sub(lambda m: self._place(m[0]), text)
        text = _HOME.sub(rf"\1/{REDACTED}", text)
        for pattern in (_AT, _DOMAIN, _IPV4, _IPV6):
            text = pattern.sub(REDACTED, text)
        return self._without_words(text)

    def _without_words(self, text: str) -> str:
        if self._pattern is None or text in _STRUCTURE or _API.fullmatch(text):
            return text
        return self._pattern.sub(REDACTED, text)

    def _url(self, match: re.Match[str]) -> str:
        return self._place(match[0]) if match["file"] else f"://{REDACTED}"

    def _encoded(self, match: re.Match[str]) -> str:
        """A path with `%2F` for its slashes."""
        path = unquote(match[0])
        self.learn_homes(path)
        return self._place(path)

    def _member(self, match: re.Match[str]) -> str:
        """A key and its value, in a string."""
        if not is_sensitive(match["key"]):
            return match[0]
        if names_somebody(match["key"]):
            self.learn(match["value"])
        return match[1] + REDACTED

    def _place(self, path: str) -> str:
        """A neutral path: `site-packages/...`, `lib/python3.12/...` or `dir3/decode.py`."""
        path = re.sub(r"^file:/*(?=/|[A-Za-z]:)", "", path, flags=re.I).replace("\\", "/")
        original = path
        path = posixpath.normpath(path)
        for kind, pattern in _LIBRARY:
            if found := pattern.fullmatch(path):
                root, tail = found[1], found[2]
                prefix = self._label(kind, path[: found.start(2)])
                return prefix + _marked(original, root + tail)
        folder, _, name = path.rpartition("/")
        if not _SOURCE_FILE.fullmatch(name):
            return self._label("dir", path).rstrip("/")
        folders = folder.split("/")
        kept = _first_public(folders, name)
        tail = "".join(f"{part}/" for part in folders[kept:]) + name
        return self._label("dir", "/".join(folders[:kept])) + _marked(original, tail)

    def _label(self, kind: str, folder: str) -> str:
        """The neutral name of `folder`, with its slash; numbered in order of appearance.

        The first folder that holds a library needs no name: `site-packages/torch/...`.
        """
        label = self._places.get((kind, folder))
        if label is None:
            number = self._counts[kind] = self._counts.get(kind, 0) + 1
            if kind == "dir":
                label = f"dir{number}/"
            else:
                label = f"env{number}/" if number > 1 else ""
            self._places[kind, folder] = label
        return label


def _first_public(folders: list[str], name: str) -> int:
    """Index of the first of the folders before the file `name` that may stay as they are."""
    for i in reversed(range(len(folders) - 1)):
        if folders[i] == "torch" and folders[i + 1] in TORCH_PACKAGES:
            return i
    kept = len(folders)
    if _GENERATED.fullmatch(f"{folders[-1]}/{name}"):
        return kept - 1
    while kept and (folders[kept - 1] in _PUBLIC or _PYTHON_HOME.fullmatch(folders[kept - 1])):
        kept -= 1
    return kept


def _marked(original: str, path: str) -> str:
    """`path` so that the analysis takes it for what it took `original` for: library code, a wait.

    It goes by folders anywhere in the path, of which some are no longer there.
    """
    for pattern, marker in _MARKERS:
        if pattern.search(original) and not pattern.search(path):
            path = f"{marker}/_/{path}"
    return path


def decoded(raw: bytes) -> str:
    r"""The text of a JSON string, given what stands between its quotes.

    As it stands when its escapes are not JSON (`C:\envs\x`).
    """
    plain = raw.decode("utf-8", "replace")
    if b"\\" not in raw:
        return plain
    try:
        text = json.loads(f'"{plain}"', strict=False)
    except ValueError:
        return plain
    # a Windows path with single backslashes can be valid JSON by accident: \t, \n, \b, \f, \r
    if re.search(r"[\x00-\x1f]", text) and _BARE_BACKSLASH.search(plain):
        return plain
    return str(text)


def _without_command(text: str) -> str:
    """A command line becomes the program's name; the bracket it stood in is closed again."""
    program = _PROGRAM.search(text)
    if program is None:
        return text
    before = text[: program.start()]
    if before.endswith(("/", "\\")):  # its folder goes too
        before = before[: -len(before.split()[-1])]
    return before + program["name"] + {"(": ")", "[": "]"}.get(before[-1:], "")


def _assigned(match: re.Match[str]) -> str:
    """`NAME=value` of an environment; numbers stay (`XBLOCK=1024`) unless the name says secret."""
    name, value = match[1] or match[3], match[2] or match[4]
    if _PLAIN_VALUE.fullmatch(value) and not _SECRET_NAME.search(match[0]):
        return match[0]
    return f"{name}={REDACTED}"
