"""Workers that fail: the error says what, where and why, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import cloudpickle
import gymnasium
import numpy as np
import pytest

from pufferlib import vector
from pufferlib.emulation import GymnasiumPufferEnv
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError, WorkerError
from pufferlib.vector.multiprocessing import count_workers
from tests.processes import await_end

# Workers cannot import this file: what is defined here travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class NoPickle(Exception):
    """Holds a lock, so that it cannot be pickled."""

    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


class NoText(Exception):
    """Cannot be turned into text."""

    def __str__(self):
        raise RuntimeError("no text")


def boom():
    raise ValueError("boom at 7")


def boom_without_pickle():
    raise NoPickle("boom in a lock")


def boom_without_text():
    raise NoText


def leave():
    sys.exit("enough")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def spin():
    while True:
        pass


class Faulty(gymnasium.Env):
    """Observes its seed and its time; calls `fault` once it gets to `place`, at time 3."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, place="", fault=None, once=None):
        self.place, self.fault, self.once = place, fault, once
        self.seed = self.time = 0
        self.fail("constructor")

    def fail(self, place):
        if place == self.place and not (self.once and self.once.exists()):
            if self.once:
                self.once.touch()
            self.fault()

    def reset(self, *, seed=None, options=None):
        self.fail("reset")
        self.seed, self.time = seed or 0, 0
        return np.array([self.seed, self.time], float), {}

    def step(self, action):
        self.time += 1
        if self.time == 3:
            self.fail("step")
        return np.array([self.seed, self.time], float), 1.0, False, False, {}

    def close(self):
        self.fail("close")


def make(place="", fault=None, *, once=None, faulty=3, **options):
    """Four environments on two workers, of which one is faulty."""
    args = [() for _ in range(4)]
    args[faulty] = (place, fault, once)
    options = {"num_workers": 2, "overwork": True} | options
    return vector.make(
        Faulty, env_args=args, num_envs=4, seed=1, backend="Multiprocessing", **options
    )


def run(vecenv, steps=6):
    vecenv.reset()
    for _ in range(steps):
        vecenv.step(np.zeros(4, np.int32))


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """No descriptor, no child and no shared memory is left after any test of this file."""

    def mapped():
        return Path("/proc/self/maps").read_text().count("memfd:pufferlib")

    shm, maps = sorted(os.listdir("/dev/shm")), mapped()
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert sorted(os.listdir("/dev/shm")) == shm
    assert mapped() == maps
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


# ---------------------------------------------------------------- exceptions


@pytest.mark.parametrize("place", ["constructor", "reset", "step", "close"])
def test_an_exception_arrives_with_environment_type_text_and_traceback(place):
    def live():
        with make(place, boom) as vecenv:
            run(vecenv)

    with pytest.raises(WorkerError) as caught:
        live()
    where = "its constructor" if place == "constructor" else place
    text = f"environment 3 (worker 1) raised ValueError in {where}: boom at 7"
    assert str(caught.value).startswith(text)
    assert caught.value.env_index == 3
    assert 'raise ValueError("boom at 7")' in caught.value.remote_traceback
    assert caught.value.remote_traceback in str(caught.value)


@pytest.mark.parametrize(
    "fault, text",
    [
        (boom_without_pickle, "raised NoPickle in step: boom in a lock"),
        (boom_without_text, "raised NoText in step: (its text is not to be had: RuntimeError)"),
        (leave, "raised SystemExit in step: enough"),
    ],
)
def test_an_exception_that_cannot_travel_arrives_as_text(fault, text):
    with make("step", fault) as vecenv:
        with pytest.raises(WorkerError) as caught:
            run(vecenv)
        assert text in str(caught.value)


def test_after_an_error_the_vector_is_closed_and_close_is_harmless():
    vecenv = make("step", boom)
    processes = [child.process for child in vecenv._children]
    with pytest.raises(WorkerError, match="boom at 7"):
        run(vecenv)
    assert all(process.poll() is not None for process in processes)
    with pytest.raises(APIUsageError, match="send was called, but nothing \\(it is closed\\)"):
        vecenv.send(np.zeros(4, np.int32))
    vecenv.close()
    vecenv.close()


def test_an_exception_in_notify_arrives_with_the_next_answer():
    def creator():
        env = GymnasiumPufferEnv(env=Faulty())
        env.notify = boom
        return env

    with vector.make(creator, num_envs=1, backend="Multiprocessing") as vecenv:
        vecenv.reset()
        vecenv.notify()
        # The worker may be notified before the step or after it.
        with pytest.raises(WorkerError, match="environment 0 .* raised ValueError in notify: boom"):
            [vecenv.step(np.zeros(1, np.int32)) for _ in range(2)]


def test_a_forked_child_leaves_the_workers_alone():
    with make() as vecenv:
        run(vecenv, 1)
        child = os.fork()
        if child == 0:
            vecenv._release()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        run(vecenv, 3)


def test_environments_of_one_vector_must_agree():
    def other():
        return gymnasium.make("CartPole-v1")

    with pytest.raises(APIUsageError, match="environment 2 has observations .* must agree"):
        vector.make(
            [Faulty, Faulty, other, other],
            num_envs=4,
            num_workers=2,
            overwork=True,
            backend="Multiprocessing",
        )


def test_a_creator_of_a_module_that_workers_cannot_import_is_explained(monkeypatch):
    module = types.ModuleType("nowhere_to_be_found")
    exec("def creator(): pass", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    text = "ModuleNotFoundError in its constructor: .*'nowhere_to_be_found'[^$]*by the sys.path of"
    with pytest.raises(WorkerError, match=text):
        vector.make(module.creator, num_envs=1, backend="Multiprocessing")


def test_a_creator_that_cannot_be_sent_is_named_with_what_to_do():
    lock = threading.Lock()

    def creator():
        return lock

    text = (
        "the creator of environment 0 cannot be sent to a worker process .*'_thread.lock'.*Serial"
    )
    with pytest.raises(APIUsageError, match=text):
        vector.make(creator, num_envs=1, backend="Multiprocessing")


# ---------------------------------------------------------------- processes that die or freeze


@pytest.mark.parametrize(
    "fault, code, text",
    [
        (die, -9, "was killed by SIGKILL; the machine or its container may have run out of memory"),
        (os.abort, -6, "was killed by SIGABRT; native code of an environment gave up"),
        (lambda: os._exit(3), 3, "ended with exit code 3"),
    ],
    ids=["kill", "abort", "exit"],
)
@pytest.mark.parametrize("place", ["constructor", "reset", "step"])
def test_a_worker_that_dies_is_named_with_its_signal(place, fault, code, text):
    with pytest.raises(WorkerError) as caught:
        run(make(place, fault))
    assert f"worker 1 with environments 2 to 3 {text}" in str(caught.value)
    assert caught.value.exit_code == code


@pytest.mark.parametrize("fault", [stop, spin])
def test_a_worker_that_freezes_is_named_with_the_limit(fault):
    with pytest.raises(WorkerError, match="worker 1 .* 2 to 3 has not finished a step in 3 s"):
        run(make("step", fault, timeout=3))


def test_a_worker_that_freezes_at_its_start_is_given_up():
    with pytest.raises(WorkerError, match="worker 1 .* did not finish construction in 10 s"):
        make("constructor", stop, timeout=1)


def test_a_worker_killed_while_idle_is_noticed_at_the_next_step():
    vecenv = make()
    run(vecenv, 2)
    vecenv._children[0].process.kill()
    vecenv._children[0].process.wait()
    with pytest.raises(
        WorkerError, match="worker 0 with environments 0 to 1 was killed by SIGKILL"
    ):
        vecenv.step(np.zeros(4, np.int32))


def test_a_dead_worker_does_not_hide_behind_ready_ones():
    vecenv = make(num_workers=4, batch_size=1)
    vecenv.async_reset()
    vecenv._children[2].process.kill()

    def go_on():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            vecenv.recv()
            vecenv.send(np.zeros(1, np.int32))

    with pytest.raises(WorkerError, match="worker 2 with environment 2 was killed by SIGKILL"):
        go_on()


def test_a_vector_left_open_ends_with_its_last_reference():
    vecenv = make()
    process = vecenv._children[0].process
    run(vecenv)
    del vecenv
    assert process.poll() is not None


# ---------------------------------------------------------------- replacement


@pytest.mark.parametrize("fault, timeout", [(die, 60), (stop, 4)])
def test_a_lost_worker_is_replaced_and_its_episodes_are_truncated(fault, timeout, tmp_path):
    options = {"once": tmp_path / "once", "timeout": timeout, "restart_workers": 2}
    with make("step", fault, **options) as vecenv:
        vecenv.reset()
        for _ in range(2):
            vecenv.step(np.zeros(4, np.int32))
        with pytest.warns(RuntimeWarning, match="worker 1 .*; replaced, 1 of 2 times"):
            observations, rewards, terminals, truncations, _ = vecenv.step(np.zeros(4, np.int32))
        assert vecenv.restarts == 1
        assert truncations.tolist() == [False, False, True, True]
        assert not terminals.any()
        assert rewards.tolist() == [1, 1, 0, 0]
        assert vecenv.final_observations[2:, 1].tolist() == [2, 2]
        assert observations[:, 1].tolist() == [3, 3, 0, 0]
        assert observations[2, 0] != vecenv.final_observations[2, 0]
        observations, rewards, _, truncations, _ = vecenv.step(np.zeros(4, np.int32))
        assert observations[:, 1].tolist() == [4, 4, 1, 1]
        assert rewards.tolist() == [1, 1, 1, 1]
        assert not truncations.any()


def test_replacement_ends_when_it_is_used_up():
    with (
        pytest.warns(RuntimeWarning, match="replaced, 1 of 1 times"),
        pytest.raises(WorkerError, match="was killed by SIGKILL"),
    ):
        run(make("step", die, restart_workers=1), 9)


def test_a_worker_lost_in_a_reset_truncates_nothing(tmp_path):
    with make("reset", die, once=tmp_path / "once", restart_workers=1) as vecenv:
        vecenv.async_reset()
        with pytest.warns(RuntimeWarning, match="worker 1"):
            _, _, terminals, truncations, *_ = vecenv.recv()
        assert not (terminals | truncations).any()


def test_an_exception_is_not_a_loss():
    with make("step", boom, restart_workers=5) as vecenv:
        with pytest.raises(WorkerError, match="boom at 7"):
            run(vecenv)
        assert vecenv.restarts == 0


# ---------------------------------------------------------------- the main process

SCRIPT = """
import gymnasium, sys, time
from pufferlib import vector

class Mine(gymnasium.Wrapper):
    def step(self, action):
        *rest, info = self.env.step(action)
        return *rest, {"mine": name}

name = "unguarded"
vecenv = vector.make(lambda: Mine(gymnasium.make("CartPole-v1")), num_envs=4, num_workers=2,
                     overwork=True, seed=1, backend="Multiprocessing")
vecenv.reset()
infos = vecenv.step(vecenv.action_space.sample())[4]
print(*(child.process.pid for child in vecenv._children), infos[3]["mine"], flush=True)
"""
FOREVER = "while True: vecenv.step(vecenv.action_space.sample())\n"
ASLEEP = "time.sleep(600)\n"


def launch(folder, text):
    """Run a script → the process, the pids of its workers and what their infos said."""
    path = folder / "script.py"
    path.write_text(text)
    process = subprocess.Popen(
        [sys.executable, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    *pids, said = process.stdout.readline().split()
    return process, [int(pid) for pid in pids], said


def test_an_unguarded_script_with_lambdas_and_classes_of_its_own_works(tmp_path):
    process, pids, said = launch(tmp_path, SCRIPT + "vecenv.close()\n")
    _, errors = process.communicate(timeout=60)
    assert said == "unguarded"
    assert errors == ""
    assert process.returncode == 0
    await_end(pids)


@pytest.mark.parametrize("ending", [FOREVER, ASLEEP])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_the_main_process(number, ending, tmp_path):
    process, pids, _ = launch(tmp_path, SCRIPT + ending)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -number
    assert errors.count("Traceback") == (number == signal.SIGINT)
    await_end(pids)


def test_workers_of_another_thread_end_with_the_main_process_and_not_with_the_thread(tmp_path):
    lines = "".join(f"    {line}\n" for line in SCRIPT.strip().splitlines())
    script = f"import threading\ndef start():\n    global vecenv, name\n{lines}"
    script += "thread = threading.Thread(target=start)\nthread.start()\nthread.join()\n"
    script += "for _ in range(99): vecenv.step(vecenv.action_space.sample())\n"
    script += "print('steps', flush=True)\nimport time\ntime.sleep(600)\n"
    process, pids, _ = launch(tmp_path, script)
    assert process.stdout.readline() == "steps\n"
    process.kill()
    process.communicate(timeout=60)
    await_end(pids)


def test_too_little_memory_is_an_error_that_says_for_what(tmp_path):
    script = """
import gymnasium, numpy, resource
from pufferlib import vector
from pufferlib.exceptions import EnvironmentSetupError

class Wide(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (1 << 22,), numpy.uint8)
    action_space = gymnasium.spaces.Discrete(2)

size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (300 << 20),) * 2)
try:
    vector.make(Wide, num_envs=64, num_workers=1, backend="Multiprocessing")
except EnvironmentSetupError as error:
    print(error)
"""
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=60
    )
    assert "no memory for the rows of 64 environments" in done.stdout, done.stderr
    assert "raise the memory limit" in done.stdout


# ---------------------------------------------------------------- sizes and interpreters


def test_workers_and_cores():
    assert count_workers(16, 16, "auto", 6) == 4
    assert count_workers(7, 7, "auto", 4) == 1
    assert count_workers(128, 8, 16, 16) == 16
    assert count_workers(8, 8, 8, 2, overwork=True) == 8
    with pytest.raises(APIUsageError, match="num_workers = 16 .* more than the 2 core.*overwork"):
        count_workers(128, 128, 16, 2)
    with pytest.raises(
        APIUsageError, match="num_workers = 4 does not fit num_envs = 10 .* 2 and 5"
    ):
        count_workers(10, 10, 4, 8)
    with pytest.raises(APIUsageError, match="num_workers = 2 does not fit .*; nearest that fit: 4"):
        count_workers(4, 1, 2, 8)
    with pytest.raises(APIUsageError, match="num_workers is 0; expected 'auto'"):
        count_workers(4, 4, 0, 8)


def test_options_are_checked_before_anything_starts():
    with pytest.raises(APIUsageError, match="timeout is 0 and restart_workers 0; expected seconds"):
        make(timeout=0)
    with pytest.raises(APIUsageError, match="python= needs worker processes"):
        vector.make(Faulty, backend="Serial", python=sys.executable)


def test_numeric_libraries_of_a_worker_use_one_thread_unless_told(monkeypatch):
    def tell():
        env = Faulty()
        env.step = lambda _: (
            np.zeros(2),
            0.0,
            False,
            False,
            {name: os.environ[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")},
        )
        return env

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    with vector.make(tell, num_envs=1, backend="Multiprocessing") as vecenv:
        vecenv.reset()
        assert vecenv.step(np.zeros(1, np.int32))[4] == [
            {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "3", "env": 0}
        ]


def test_an_info_that_cannot_travel_arrives_as_text():
    def tell():
        env = Faulty()
        env.step = lambda _: (np.zeros(2), 0.0, False, False, {"a": 1, "lock": threading.Lock()})
        return env

    with vector.make(tell, num_envs=1, backend="Multiprocessing") as vecenv:
        vecenv.reset()
        (info,) = vecenv.step(np.zeros(1, np.int32))[4]
        assert info["a"] == 1
        assert info["lock"].startswith("<unlocked _thread.lock")


def test_infos_larger_than_a_socket_take_no_harm():
    def tell():
        env = Faulty()
        env.step = lambda _: (np.zeros(2), 0.0, False, False, {"map": np.ones(1 << 20)})
        return env

    with vector.make(tell, num_envs=2, num_workers=1, backend="Multiprocessing") as vecenv:
        vecenv.reset()
        for _ in range(3):
            infos = vecenv.step(np.zeros(2, np.int32))[4]
        assert [info["map"].sum() for info in infos] == [1 << 20, 1 << 20]
        vecenv.send(np.zeros(2, np.int32))


@pytest.fixture(scope="module")
def other_python(tmp_path_factory):
    """An interpreter that has this one's packages, but not this library."""
    folder = tmp_path_factory.mktemp("other")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "packages.pth").write_text(str(Path(np.__file__).parents[1]))
    return folder / "bin" / "python"


def test_workers_run_under_another_interpreter(other_python):
    def tell():
        env = Faulty()
        env.step = lambda _: (np.zeros(2), 0.0, False, False, {"prefix": sys.prefix})
        return env

    with vector.make(tell, num_envs=1, python=other_python) as vecenv:
        assert vecenv.choice == "Multiprocessing: python= asks for workers of another interpreter"
        vecenv.reset()
        (info,) = vecenv.step(np.zeros(1, np.int32))[4]
        assert info["prefix"] == str(other_python.parents[1])
        assert info["prefix"] != sys.prefix


def test_an_interpreter_that_does_not_fit_is_refused(tmp_path):
    def refuse(text, script=None):
        python = tmp_path / "python"
        if script:
            python.write_text(f"#!/bin/sh\n{script}\n")
            python.chmod(0o755)
        with pytest.raises(EnvironmentSetupError, match=text):
            vector.make(Faulty, python=python)

    refuse("is no program that can be run")
    refuse(r"is Python 2\.7; expected Python 3\.", "echo '[[2, 7], []]'")
    version = list(sys.version_info[:2])
    refuse("lacks numpy; run: .*-m pip install numpy", f"""echo '[{version}, ["numpy"]]'""")
    refuse("does not work: broken", "echo broken >&2; exit 1")


# ---------------------------------------------------------------- slow


@pytest.mark.slow
def test_many_rounds_leave_no_memory_behind():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    def rounds(n):
        for _ in range(n):
            with make(num_workers=1) as vecenv:
                run(vecenv, 2)

    rounds(20)
    before = resident()
    rounds(280)
    # A leak of one block or one channel a round would be 280 pages at least, 1.1 MB.
    assert resident() - before < 1 << 20


@pytest.mark.slow
def test_idle_workers_use_no_processor():
    creators = [Faulty] * 16
    with vector.make(
        creators, num_envs=16, num_workers=16, overwork=True, backend="Multiprocessing"
    ) as vecenv:
        vecenv.reset()
        stats = [Path(f"/proc/{child.process.pid}/stat") for child in vecenv._children]

        def ticks():
            times = (stat.read_text().rpartition(")")[2].split()[11:13] for stat in stats)
            return sum(int(user) + int(system) for user, system in times)

        before = ticks()
        time.sleep(10)
        # 2 % of one core for 10 s, in ticks.
        assert ticks() - before <= 0.02 * 10 * os.sysconf("SC_CLK_TCK")
