"""Every registered environment: conformance, equality of backends, documents, names."""

import re

import numpy as np
import pytest

from pufferlib import registry, vector
from pufferlib.env import check_env
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError

NAMES = registry.names()
NATIVE = [name for name in NAMES if registry.find(name).is_native]


@pytest.mark.parametrize("name", NATIVE)
def test_it_conforms(name):
    report = check_env(lambda: registry.find(name)(num_envs=4), steps=600)
    assert report.terminations + report.truncations > 0


@pytest.mark.parametrize("name", NATIVE)
def test_native_equals_serial_to_the_bit(name):
    serial = vector.make(name, num_envs=6, backend="Serial", seed=11)
    native = vector.make(name, num_envs=6, backend="Native", seed=11)
    assert isinstance(native, vector.Native)
    native.action_space.seed(1)
    for a, b in zip(serial.reset(), native.reset(), strict=True):
        np.testing.assert_array_equal(a, b)
    for _ in range(300):
        actions = native.action_space.sample()
        for a, b in zip(serial.step(actions), native.step(actions), strict=True):
            np.testing.assert_array_equal(a, b)
        ended = serial.buf.terminals | serial.buf.truncations
        np.testing.assert_array_equal(
            serial.final_observations[ended], native.final_observations[ended]
        )
    mine, theirs = serial.episode_stats(), native.episode_stats()
    assert mine.keys() == theirs.keys()
    # The one sums in float32 world by world, the other in float64.
    assert mine == pytest.approx(theirs, rel=1e-5)
    serial.close()
    native.close()


@pytest.mark.parametrize("name", NAMES)
def test_its_folder_is_complete(name):
    folder = registry.find(name).folder
    assert (folder / "README.md").is_file() and (folder / "config.toml").is_file()


@pytest.mark.parametrize("name", NATIVE)
def test_its_readme_tells_the_parameters_of_its_header(name):
    entry = registry.find(name)
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (\S+) \| (\S+) (?:to|…|–) (\S+) \| (.+?) \|$",
                      (entry.folder / "README.md").read_text(), re.MULTILINE)  # fmt: skip
    told = {row[0]: row[1:] for row in rows}
    assert told.keys() == {p[0] for p in entry.library.params}
    for parameter, kind, initial, low, high, sentence in entry.library.params:
        row = told[parameter]
        assert (row[0], row[4]) == (kind, sentence)
        numbers = [float({"true": 1, "false": 0}.get(x, x)) for x in row[1:4]]
        assert numbers == pytest.approx([float(initial), low, high])


@pytest.mark.parametrize("name", NAMES)
def test_pictures_its_readme_shows_are_there(name):
    folder = registry.find(name).folder
    shown = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (folder / "README.md").read_text())
    assert shown or name not in NATIVE
    for picture in shown:
        assert (folder / picture).stat().st_size < 200_000


def test_an_unknown_name_is_answered_with_near_ones():
    with pytest.raises(APIUsageError, match="no environment 'brekout'; did you mean breakout"):
        registry.find("brekout")


def test_a_folder_without_an_environment_is_refused(tmp_path):
    with pytest.raises(
        APIUsageError, match=r"is no environment: it has neither .*\.h nor __init__"
    ):
        registry.find(tmp_path)


def test_a_python_folder_anywhere_works(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "import gymnasium\ndef make():\n    return gymnasium.make('CartPole-v1')\n"
    )
    with vector.make(folder, num_envs=3) as made:
        assert made.reset(0)[0].shape == (3, 4)


def test_a_vector_that_a_folder_makes_itself_is_taken_where_one_batch_is_all(tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "import gymnasium\n"
        "def make(task='CartPole-v1'):\n"
        "    return gymnasium.make(task)\n"
        "def make_vector(num_envs, num_workers, **parameters):\n"
        "    mode = gymnasium.vector.AutoresetMode.SAME_STEP\n"
        "    envs = [lambda: make(**parameters)] * num_envs\n"
        "    return gymnasium.vector.SyncVectorEnv(envs, autoreset_mode=mode)\n"
    )
    task = {"task": "Acrobot-v1"}
    with vector.make(folder, env_kwargs=task, num_envs=3, seed=2) as own:
        assert own.choice == "SyncVectorEnv: the environment's own vector"
        begun = own.reset()[0].copy()
    with vector.make(folder, env_kwargs=task, num_envs=3, seed=2, backend="Serial") as serial:
        np.testing.assert_array_equal(serial.reset()[0], begun)
    with vector.make(folder, num_envs=4, batch_size=2) as halves:
        assert "own vector" not in halves.choice
    with vector.make(folder, env_kwargs=[task, task], num_envs=2) as listed:
        assert "own vector" not in listed.choice


@pytest.mark.parametrize(
    ("more", "command"),
    [("", r"pip install 'a-package==1.2'"), ('install = "make image"\n', "with: make image$")],
)
def test_a_missing_package_is_answered_with_the_command_that_installs_it(tmp_path, more, command):
    folder = tmp_path / "needy"
    folder.mkdir()
    (folder / "__init__.py").write_text("import a_package_that_nobody_has\n")
    (folder / "config.toml").write_text('[package]\nrequires = ["a-package==1.2"]\n' + more)
    with pytest.raises(
        EnvironmentSetupError, match=rf"'needy' needs the package 'a_package_that.*{command}"
    ):
        vector.make(folder)


def test_a_mistake_in_an_environments_own_imports_is_not_hidden(tmp_path):
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "__init__.py").write_text("import a_package_that_nobody_has\n")
    with pytest.raises(ModuleNotFoundError, match="a_package_that_nobody_has"):
        vector.make(folder)


def test_a_function_check_refuses_parameters_before_any_worker_starts(tmp_path, monkeypatch):
    folder = tmp_path / "choosy"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "import gymnasium\nfrom pufferlib.exceptions import APIUsageError\n"
        "def check(file=''):\n    if file != 'there':\n        raise APIUsageError('no file')\n"
        "def make(file=''):\n    return gymnasium.make('CartPole-v1')\n"
    )
    with vector.make(folder, env_kwargs={"file": "there"}, num_envs=2) as made:
        assert made.reset(0)[0].shape == (2, 4)

    def no_worker(*_):
        raise AssertionError("a worker was started")

    monkeypatch.setattr("pufferlib.vector.multiprocessing.Child", no_worker)
    for kwargs in ({"file": "gone"}, [{"file": "there"}, {}]):
        with pytest.raises(APIUsageError, match="no file"):
            vector.make(folder, env_kwargs=kwargs, backend="Multiprocessing", num_envs=2)
