"""`hostgap rules`, `hostgap explain`, and what `hostgap analyze` takes about rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_cli_analyze import ROOT, hostgap, json_of

EAGER = ROOT / "sample_traces" / "eager_item.json.gz"


def error_of(*args: object, code: int = 2, **kwargs: object) -> str:
    done = hostgap(*args, **kwargs)  # type: ignore[arg-type]
    assert done.returncode == code
    text = done.stderr.decode()
    assert len(text.splitlines()) <= 2
    assert "Traceback" not in text
    return text


def test_rules_lists_every_rule() -> None:
    shown = hostgap("rules").stdout.decode()
    files = [path.stem for path in (ROOT / "rules").glob("hg*.py")]
    assert len(files) > 40
    for stem in files:
        assert stem.split("_")[0].upper() in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_explain_by_name() -> None:
    assert hostgap("explain", "launch-storm").stdout.startswith(b"HG201 launch-storm")


def test_explain_a_rule_and_a_remark() -> None:
    rule = hostgap("explain", "HG101").stdout.decode()
    assert rule.startswith("HG101 scalar-read: ")
    assert "## Use instead" in rule
    assert "record again" in hostgap("explain", "hg904").stdout.decode()


def test_explain_suggests_the_nearest() -> None:
    assert "did you mean HG1" in error_of("explain", "HG1010")
    assert "HG101 to HG112 begin so" in error_of("explain", "hg1")


def test_select_and_ignore() -> None:
    codes = {f["code"] for f in json_of(EAGER, "--select", "HG1,HG2")["findings"]}
    assert codes
    assert {code[:3] for code in codes} <= {"HG1", "HG2"}
    left = {f["code"] for f in json_of(EAGER, "--ignore", "HG1,HG2")["findings"]}
    assert not {code[:3] for code in left} & {"HG1", "HG2"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--select", "HG1001"), "did you mean HG1"),
        (("--ignore", "XX"), "no rule 'XX'"),
        (("--select", ","), "no code given"),
        (("--rules", "no/such/folder"), "no such folder"),
        (("--min-saving", "much"), "not a share"),
        (("--min-saving", "200%"), "not a share"),
        (("--gpu-price", "-1"), "--gpu-price"),
        (("--tokens-per-step", "0"), "--tokens-per-step"),
        (("--source-root", "no/such/folder"), "--source-root"),
    ],
)
def test_bad_options(options: tuple[str, ...], says: str) -> None:
    assert says in error_of("analyze", EAGER, *options)


def test_fail_on(tmp_path: Path) -> None:
    failed = hostgap("analyze", EAGER, "--fail-on", "error")
    assert failed.returncode == 1
    assert failed.stderr.decode().startswith("hostgap: --fail-on error: HG201")
    config = 'fail-on = "error"\nmin-saving = "2%"\nselect = "HG2"\n'
    (tmp_path / "hostgap.toml").write_text(config)
    assert hostgap("analyze", EAGER, cwd=tmp_path).returncode == 1
    # a check whose rules did not run has not passed
    (tmp_path / "my001_broken.py").write_text("def f(:")
    done = hostgap("analyze", EAGER, "--rules", tmp_path, "--fail-on", "error")
    assert done.returncode == 2
    assert b"some rules did not run" in done.stderr
    assert hostgap("analyze", EAGER, "--fail-on", "warning", "--select", "HG101").returncode == 0


def test_price() -> None:
    shown = hostgap("analyze", EAGER, "--gpu-price", "3.6").stdout.decode()
    said = "At 3.6 an hour a million steps cost up to 35.42, 32.99 of it for an idle GPU."
    assert said in shown
    whole = json_of(EAGER, "--gpu-price", "3.6", "--window", "trace")["cost"]
    assert whole["per_million_steps"] is None
    cost = json_of(EAGER, "--gpu-price", "3.6", "--tokens-per-step", "4")["cost"]
    assert cost["per_million_tokens"] == pytest.approx(cost["per_million_steps"] / 4)


def test_a_broken_rule_of_ones_own_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "my001_broken.py").write_text("def f(:")
    done = hostgap("analyze", EAGER, "--rules", tmp_path)
    assert done.returncode == 0
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("hostgap: warning: ")
    assert "my001_broken.py: skipped: SyntaxError" in line
    assert done.stdout


def test_thresholds_from_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "hostgap.toml"
    config.write_text('select = ["HG201"]\n[rule.HG201]\nmin-idle = 0.99\n')
    assert json_of(EAGER, cwd=tmp_path)["findings"] == []
    config.write_text('select = ["HG201"]\n[rule.HG201]\nmin-idle = 0.2\n')
    assert [f["code"] for f in json_of(EAGER, cwd=tmp_path)["findings"]] == ["HG201"]
    config.write_text("[rule.HG201]\nmin-idel = 0.2\n")
    assert "did you mean 'min-idle'?" in error_of("analyze", EAGER, cwd=tmp_path)
    config.write_text("[rule]\nHG201 = 3\n")
    assert "hostgap.toml" in error_of("analyze", EAGER, cwd=tmp_path)


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "-0.5", "0x" + "f" * 5000])
def test_a_threshold_is_a_number_from_0_on(value: str, tmp_path: Path) -> None:
    (tmp_path / "hostgap.toml").write_text(f"[rule.HG201]\nmin-idle = {value}\n")
    said = error_of("analyze", EAGER, cwd=tmp_path)
    assert "HG201: min-idle is no number from 0 to 1e+15" in said


def test_a_threshold_is_given_once(tmp_path: Path) -> None:
    config = tmp_path / "hostgap.toml"
    config.write_text("[rule.HG201]\nmin-idle = 0.1\nmin_idle = 0.2\n")
    assert "HG201: 'min-idle' is given twice" in error_of("analyze", EAGER, cwd=tmp_path)
    config.write_text("[rule.HG201]\nmin-idle = 0.1\n[rule.hg201]\nmin-idle = 0.2\n")
    assert "rule HG201 is given twice" in error_of("analyze", EAGER, cwd=tmp_path)


@pytest.mark.parametrize("code", ["HG101", "HG104", "HG202", "HG904"])
def test_explain_fits_eighty_columns(code: str) -> None:
    """But for code, which must stay as it is."""
    lines = hostgap("explain", code).stdout.decode().splitlines()
    assert len(lines) > 3
    for line in lines:
        assert len(line) <= 80 or line.startswith("    "), line
