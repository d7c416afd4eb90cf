from __future__ import annotations

import hmac
import os
import stat
import subprocess
from pathlib import Path

import pytest
from every_case import every_case

from holdfast.errors import HoldfastError, UsageError
from holdfast.probe.serve import tokens

OTHER_UID = 12345
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody else")


def test_a_new_token_goes_into_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    token = tokens.add_to_file(tmp_path / "tokens", name="alice")
    assert stat.S_IMODE((tmp_path / "tokens").stat().st_mode) == 0o600
    assert tokens.read_file(tmp_path / "tokens") == [token] and token.name == "alice" and not token.read_only


def test_a_second_token_is_added_and_one_that_may_only_read_says_so_itself(tmp_path: Path) -> None:
    first = tokens.add_to_file(tmp_path / "tokens")
    second = tokens.add_to_file(tmp_path / "tokens", name="bob", read_only=True)
    assert tokens.read_file(tmp_path / "tokens") == [first, second]
    assert second.read_only and second.text.startswith("ro_") and first.text != second.text


@every_case("mode", [0o644, 0o640, 0o602])
def test_a_file_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    tokens.add_to_file(tmp_path / "tokens")
    (tmp_path / "tokens").chmod(mode)
    with pytest.raises(UsageError, match="other users can read") as caught:
        tokens.read_file(tmp_path / "tokens")
    assert "chmod 600" in caught.value.fix
    with pytest.raises(UsageError, match="other users can read"):
        tokens.add_to_file(tmp_path / "tokens")


@AS_ROOT
def test_another_user_can_neither_read_the_file_nor_plant_one(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    path = tmp_path / "tokens"
    tokens.add_to_file(path)
    theirs = subprocess.run(
        ["cat", str(path)], user=OTHER_UID, group=OTHER_UID, extra_groups=[], capture_output=True, check=False
    )
    assert theirs.returncode != 0 and not theirs.stdout
    os.chown(path, OTHER_UID, OTHER_UID)
    with pytest.raises(UsageError, match="another user"):
        tokens.read_file(path)


@every_case("text", ["short", "with a space in it", "a b c\n", "", "ungültig-aber-lang-genug"])
def test_what_is_no_token_is_refused_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(text)
    with pytest.raises(HoldfastError) as caught:
        tokens.read_file(path)
    assert "--new-token" in caught.value.fix


def test_a_token_comes_from_the_environment_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tokens.add_to_file(tmp_path / "tokens")
    monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)
    monkeypatch.setenv("HOLDFAST_TOKEN_FILE", str(tmp_path / "tokens"))
    assert tokens.given_tokens() == [token]
    monkeypatch.setenv("HOLDFAST_TOKEN", "ro_0123456789abcdef")
    assert [one.text for one in tokens.given_tokens()] == ["ro_0123456789abcdef"] and tokens.given_tokens()[0].read_only


def test_every_token_is_compared_in_constant_time_whichever_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [tokens.make(f"0123456789abcdef{number}", str(number)) for number in range(5)]
    compare, compared = hmac.compare_digest, []
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(len(a)) or compare(a, b))
    assert tokens.find("0123456789abcdef0", known) is known[0]
    assert tokens.find("0123456789abcdef4", known) is known[4]
    assert tokens.find("", known) is None and tokens.find("x" * 10_000, known) is None
    assert compared == [32] * 20


def test_the_text_of_a_token_is_not_in_what_is_printed_of_it() -> None:
    token = tokens.make("hf_0123456789abcdef")
    assert "0123456789" not in repr(token) + token.name


def test_the_token_of_the_same_user_lives_as_long_as_its_server() -> None:
    with tokens.local_token(8123) as token:
        assert tokens.read_file(tokens.local_file(8123)) == [token]
        assert stat.S_IMODE(tokens.local_file(8123).stat().st_mode) == 0o600
    assert not tokens.local_file(8123).exists()
