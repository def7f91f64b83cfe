"""What adapters share: silence, refusals that name what is near, the parameters of a class."""

import os
import subprocess
import sys

import numpy as np
import pytest

from pufferlib.adapters import parameters_of, refuse_unknown, shrink, silenced, to_gray
from pufferlib.exceptions import APIUsageError

NOISE = """
import ctypes, os, sys
from pufferlib.adapters import silenced
def shout(word):
    print(word)
    print(word, file=sys.stderr)
    os.write(1, b"descriptor 1\\n")
    os.write(2, b"descriptor 2\\n")
    os.system("echo child")
sys.stdout.write("before ")
with silenced():
    shout("held")
print("after")
"""


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_nothing_that_is_written_in_silence_is_shown():
    done = run(NOISE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "before after\n", "")


def test_what_was_held_back_is_shown_if_the_block_raises():
    done = run(NOISE + "with silenced():\n    shout('held')\n    raise ValueError('wrong')\n")
    assert done.stdout == "before after\n"
    for word in ("held", "descriptor 1", "descriptor 2", "child", "ValueError: wrong"):
        assert word in done.stderr


def test_silence_opens_no_descriptor_for_good_and_gives_the_streams_back():
    streams, before = (sys.stdout, sys.stderr), os.listdir("/proc/self/fd")
    for _ in range(3):
        with silenced(), silenced():
            print("held")
    assert (sys.stdout, sys.stderr) == streams
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize(
    "name, message",
    [
        ("Pond", "there is no game 'Pond'; did you mean 'Pong'?"),
        ("chess", "there is no game 'chess'; expected one of Breakout, Pong"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_or_all(name, message):
    with pytest.raises(APIUsageError) as caught:
        refuse_unknown("game", ["Pong", name], ["Pong", "Breakout"])
    assert str(caught.value) == message


def test_known_names_pass_whatever_they_are():
    refuse_unknown("render mode", [None, "rgb_array"], {None: 0, "rgb_array": 1})


class Base:
    def __init__(self, gravity=9.8, *args):
        pass


class Derived(Base):
    def __init__(self, wind=0.0, **kwargs):
        pass


def test_parameters_of_a_class_are_those_of_its_ancestors_too():
    assert parameters_of(Derived) == {"wind", "gravity"}
    assert parameters_of(lambda task, *, seed=1, **rest: None) == {"task", "seed"}


def test_a_picture_is_shrunk_by_averaging_squares_and_what_fills_none_is_left_out():
    picture = np.random.default_rng(0).integers(256, size=(11, 14, 3), dtype=np.uint8)
    means = picture[:9, :12].reshape(3, 3, 4, 3, 3).mean((1, 3)).astype(np.uint8)
    np.testing.assert_array_equal(shrink(picture, 3), means)
    whole = shrink(picture, 1)
    np.testing.assert_array_equal(whole, picture)
    assert whole.base is not picture and not np.shares_memory(whole, picture)
    white = np.full((32, 32, 1), 255, np.uint8)
    assert (shrink(white, 16) == 255).all()


def test_a_grey_picture_keeps_grey_and_weighs_green_most():
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    np.testing.assert_array_equal(to_gray(grey.repeat(3, 2)), grey)
    red, green, blue = to_gray(255 * np.eye(3, dtype=np.uint8)[None])[0, :, 0]
    assert green > red > blue > 0
