"""Where keys come from, and who may read them."""

import base64
import os
import stat

import pytest

from nemo_jobs.domain.secrets import Sealed
from nemo_jobs.vault import cipher
from nemo_jobs.vault.cipher import Unreadable
from nemo_jobs.vault.keys import MAX_KEYS, Key, KeyProblem, Keys, parse_keys

WHERE = ("secret", "default", "token")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "secrets.key"


def test_a_key_is_made_at_first_need_for_its_owner_alone(path):
    keys = Keys(path)
    assert keys.load() == ()
    assert not path.exists()
    key, made = keys.first()
    assert made
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Keys(path).first() == (key, False)
    assert Keys(path).load() == (key,)
    assert key.text() not in repr(key)
    assert repr(key.raw) not in repr(key)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_file_that_others_can_read_is_refused(path, mode):
    Keys(path).first()
    path.chmod(mode)
    with pytest.raises(KeyProblem, match="chmod 600"):
        Keys(path).load()
    with pytest.raises(KeyProblem, match="chmod 600"):
        Keys(path).first()
    with pytest.raises(KeyProblem, match="chmod 600"):
        Keys(path).put_first(Key.new())


def test_a_link_or_a_directory_is_no_key_file(path, tmp_path):
    real = tmp_path / "real"
    Keys(real).first()
    path.symlink_to(real)
    with pytest.raises(KeyProblem, match="can't be read"):
        Keys(path).load()
    path.unlink()
    path.mkdir()
    with pytest.raises(KeyProblem, match="not a regular file"):
        Keys(path).load()
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(KeyProblem, match="not a regular file"):
        Keys(path).load()


@pytest.mark.parametrize("text", ["", "# only words\n", "hunter2hunter2\n", "AAAA\n", "é" * 40, "\0" * 80])
def test_a_file_without_keys_is_told_of_and_not_shown(path, text):
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(KeyProblem) as found:
        Keys(path).load()
    assert str(path) in str(found.value)
    assert "hunter2" not in str(found.value)


def test_keys_of_the_environment_come_first_and_nothing_is_written(path):
    of_file, _ = Keys(path).first()
    one, two = Key.new(), Key.new()
    keys = Keys(path, f" {one.text()},\n{two.text()} ")
    assert keys.fixed
    assert keys.first() == (one, False)
    assert keys.load() == (one, two, of_file)
    urlsafe = base64.urlsafe_b64encode(one.raw).decode()
    assert Keys(path, urlsafe).first()[0] == one


@pytest.mark.parametrize(
    "text", ["short", "hunter2hunter2hunter2", "!" * 44, base64.b64encode(b"x" * 33).decode()]
)
def test_a_wrong_key_of_the_environment_is_told_of_and_not_shown(path, text):
    with pytest.raises(KeyProblem) as found:
        Keys(path, text)
    assert "NHX_SECRETS_KEY" in str(found.value)
    assert "openssl rand" in str(found.value)
    assert text not in str(found.value)


def test_old_keys_stay_in_the_file_up_to_a_bound(path):
    keys = Keys(path)
    made = [keys.first()[0]]
    for _ in range(MAX_KEYS + 2):
        made.append(Key.new())
        keys.put_first(made[-1])
    assert list(keys.load()) == made[::-1][:MAX_KEYS]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    keys.take_back(made[-1])
    assert keys.load()[0] == made[-2]


def test_a_half_written_new_file_is_no_harm(path):
    keys = Keys(path)
    first, _ = keys.first()
    path.with_name("secrets.key.new").write_text("half")
    keys.put_first(Key.new())
    assert keys.load()[1] == first
    assert not path.with_name("secrets.key.new").exists()


def test_two_services_of_one_directory_make_one_key(path):
    import threading

    found: list[Key] = []
    threads = [threading.Thread(target=lambda: found.append(Keys(path).first()[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({key.id for key in found}) == 1


def test_a_ciphertext_opens_only_in_its_place_and_with_its_key():
    key, other = Key.new(), Key.new()
    keys = {key.id: key, other.id: other}
    sealed = cipher.encrypt(key, "hunter22", WHERE)
    assert cipher.decrypt(keys, sealed, WHERE) == "hunter22"
    assert cipher.encrypt(key, "hunter22", WHERE) != sealed
    assert "hunter22" not in sealed.value
    for where in (("secret", "default", "other"), ("secret", "lab", "token"), ("run", "default", "token")):
        with pytest.raises(Unreadable, match="moved"):
            cipher.decrypt(keys, sealed, where)
    # Words don't run into each other.
    with pytest.raises(Unreadable):
        cipher.decrypt(keys, cipher.encrypt(key, "x", ("secret", "ab", "c")), ("secret", "a", "bc"))
    with pytest.raises(Unreadable, match="does not have"):
        cipher.decrypt({other.id: other}, sealed, WHERE)
    with pytest.raises(Unreadable, match="changed"):
        cipher.decrypt(keys, Sealed(sealed.value, other.id), WHERE)


@pytest.mark.parametrize("value", ["", "1.", "2.AAAA", "1.!!!!", "1.AAAA", "1." + "A" * 64])
def test_what_is_no_ciphertext_is_unreadable(value):
    key = Key.new()
    with pytest.raises(Unreadable):
        cipher.decrypt({key.id: key}, Sealed(value, key.id), WHERE)


def test_a_key_is_handed_over_only_to_who_has_the_one_before():
    old, new = Key.new(), Key.new()
    text = cipher.wrap(old, new)
    assert cipher.unwrap(old, text, new.id) == new
    with pytest.raises(Unreadable):
        cipher.unwrap(Key.new(), text, new.id)
    with pytest.raises(Unreadable):
        cipher.unwrap(old, text, Key.new().id)


def test_a_key_written_twice_counts_once():
    key = Key.new()
    assert parse_keys(f"{key.text()} {key.text()}", "here") == (key,)


def test_the_library_for_encryption_is_loaded_with_its_first_use_alone():
    import subprocess
    import sys

    code = (
        "import sys, nemo_jobs.service, nemo_jobs.engine.engine, nemo_jobs.http.app\n"
        "import nemo_jobs.vault.secrets\n"
        "sys.exit(any(name.startswith('cryptography') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=50, check=False).returncode == 0
