"""microRTS: real-time strategy on a small grid against scripts (package gym-microrts)."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.adapters import refuse_unknown, silenced
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError

REWARDS = {
    "win": "WinLoss",
    "gather": "ResourceGather",
    "worker": "ProduceWorker",
    "building": "ProduceBuilding",
    "attack": "Attack",
    "combat_unit": "ProduceCombatUnit",
}
REWARD_WEIGHTS = {
    "win": 10,
    "gather": 1,
    "worker": 1,
    "building": 0.2,
    "attack": 1,
    "combat_unit": 4,
}

OPPONENTS = {
    "passive": "ai.PassiveAI",
    "random": "ai.RandomBiasedSingleUnitAI",
    "random_biased": "ai.RandomBiasedAI",
    "worker_rush": "ai.abstraction.WorkerRush",
    "light_rush": "ai.abstraction.LightRush",
    "coac": "ai.coac.CoacAI",
    "naive_mcts": "ai.mcts.naivemcts.NaiveMCTS",
    "droplet": "GNS.Droplet",
    "guided_rojo": "ai.competition.GRojoA3N.GuidedRojoA3N",
    "izanagi": "ai.competition.IzanagiBot.Izanagi",
    "mixed": "ai.JZ.MixedBot",
    "rojo": "ai.competition.rojobot.Rojo",
    "tiamat": "ai.competition.tiamat.Tiamat",
}
PLAYERLESS = {"passive", "random", "random_biased"}  # Opponents that need not know the units.
SHARED_RANDOM = ("rts.GameState", "rts.UnitAction", "rts.PlayerActionGenerator", "util.Sampler")

# What a cell shows, one-hot: hit points, resources, owner, kind of unit, what it is doing.
UNITS = ("nothing", "resource", "base", "barracks", "worker", "light", "heavy", "ranged")
PLANES = (5, 5, 3, len(UNITS), 6)
ACTIONS = (6, 4, 4, 4, 4, len(UNITS) - 1, 49)  # Behind the cell of the unit that acts.

JVM_OPTIONS = (
    "-Djava.awt.headless=true",
    "-Xmx1g",
    "-Xrs",  # SIGINT and SIGTERM stay Python's.
    "-XX:+UseSerialGC",  # Other collectors start a thread for each core.
    "-XX:TieredStopAtLevel=1",
    "-XX:CICompilerCount=1",
    "-XX:-UsePerfData",
    "-XX:+ErrorFileToStderr",
)
CELL = 24  # Pixels.
COLORS = {
    "resource": (80, 180, 90),
    "base": (230, 230, 230),
    "barracks": (150, 150, 150),
    "worker": (170, 170, 170),
    "light": (250, 170, 60),
    "heavy": (230, 220, 80),
    "ranged": (110, 200, 230),
}
OWNERS = ((70, 70, 70), (60, 110, 230), (230, 70, 60))


def make(
    task: str = "8x8/basesWorkers8x8",
    *,
    opponent: str = "random_biased",
    max_episode_steps: int = 2000,
    partial_observability: bool = False,
    reward_weights: dict[str, float] | None = None,
    render_mode: str | None = None,
) -> MicroRTS:
    """One game on the map `task` against `opponent`.

    `reward_weights` replace some of `REWARD_WEIGHTS`. `render_mode` is None or "rgb_array".
    Raises: ModuleNotFoundError without gym-microrts or JPype1; EnvironmentSetupError without
    Java; APIUsageError for an unknown map, opponent or kind of reward.
    """
    folder = _find_package() / "microrts"
    maps = {
        str(path.relative_to(folder / "maps").with_suffix(""))
        for path in folder.glob("maps/**/*.xml")
    }
    refuse_unknown("map of microrts", [task], maps)
    refuse_unknown("opponent of microrts", [opponent], OPPONENTS)
    refuse_unknown("reward of microrts", reward_weights or (), REWARDS)
    refuse_unknown("render mode of microrts", [render_mode], [None, "rgb_array"])
    if max_episode_steps < 1:
        raise APIUsageError(f"max_episode_steps is {max_episode_steps}; expected at least 1")
    weights = {**REWARD_WEIGHTS, **(reward_weights or {})}
    return MicroRTS(
        folder, task, opponent, max_episode_steps, partial_observability, weights, render_mode
    )


class MicroRTS(gymnasium.Env):
    """One game of microRTS with Gymnasium's rules, played as player 0.

    All chance, that of the opponent included, comes from the seed of `reset`; other games in this
    process have no part in it. The time limit is truncation. The info of an episode's last step
    has `won` (1, 0 or -1) and the unweighted sum of each kind of reward.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(
        self,
        folder: Path,
        task: str,
        opponent: str,
        max_episode_steps: int,
        partial_observability: bool,
        weights: dict[str, float],
        render_mode: str | None,
    ):
        self.render_mode = render_mode
        self._limit = max_episode_steps
        self._names = [f"reward_{name}" for name in weights]
        self._weights = np.array(list(weights.values()), np.float64)
        root = ElementTree.parse(folder / "maps" / f"{task}.xml").getroot()
        self._height, self._width = int(root.attrib["height"]), int(root.attrib["width"])
        # The last two planes tell which cells are hidden.
        planes = (*PLANES, 2) if partial_observability else PLANES
        self._last = np.array(planes)[:, None] - 1
        self._first = np.cumsum((0, *planes[:-1]))[:, None]
        self._cells = np.arange(self._height * self._width)
        shape = (self._height, self._width, sum(planes))
        self.observation_space = spaces.Box(0, 1, shape, np.uint8)
        self.action_space = spaces.MultiDiscrete([self._height * self._width, *ACTIONS])

        java = _start_java(folder)
        kinds = java.JClass("ai.rewardfunction.RewardFunctionInterface")
        rewards = [java.JClass(f"ai.rewardfunction.{REWARDS[n]}RewardFunction")() for n in weights]
        units = java.JClass("rts.units.UnitTypeTable")()
        needs = () if opponent in PLAYERLESS else (units,)
        self._client: Any = java.JClass("tests.JNIGridnetClient")(
            java.JArray(kinds)(rewards),
            str(folder),
            f"maps/{task}.xml",
            java.JClass(OPPONENTS[opponent])(*needs),
            units,
            partial_observability,
        )
        self._java = java
        self._shared = [
            random for name in SHARED_RANDOM for random in _find_randoms(java.JClass(name).class_)
        ]

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Begin a game → (observation, {})."""
        super().reset(seed=seed)
        self._randoms = self._shared
        self._seed_java()
        response = self._client.reset(0)
        opponent = self._client.ai2  # Another one in every game.
        self._randoms = self._shared + _find_randoms(opponent.getClass(), opponent)
        self._length = 0
        self._totals = np.zeros(len(self._weights))
        return self._read(response), {}

    def step(self, action):
        """One unit begins something → (observation, reward, terminated, truncated, info)."""
        self._seed_java()
        response = self._client.gameStep([np.asarray(action).tolist()], 0)
        rewards = np.array(response.reward)
        self._totals += rewards
        self._length += 1
        terminated = bool(response.done[0])
        truncated = not terminated and self._length >= self._limit
        info = {}
        if terminated or truncated:
            won = int(rewards[0]) if terminated else 0
            info = {"won": won, **dict(zip(self._names, self._totals.tolist(), strict=True))}
        return self._read(response), float(rewards @ self._weights), terminated, truncated, info

    def render(self):
        """The map [24 * height, 24 * width, 3] uint8: frames are owners, squares are units."""
        if self.render_mode is None:
            return None
        picture = np.full((self._height, self._width, CELL, CELL, 3), 30, np.uint8)
        _, _, owners, kinds, _ = self._raw[:5].reshape(5, self._height, self._width)
        for y, x in np.argwhere(kinds > 0):
            picture[y, x, 2:-2, 2:-2] = OWNERS[owners[y, x]]
            picture[y, x, 6:-6, 6:-6] = COLORS[UNITS[kinds[y, x]]]
        return picture.swapaxes(1, 2).reshape(CELL * self._height, CELL * self._width, 3)

    def close(self):
        """Let the game go; Java itself ends with the process."""
        self._client = None

    def _seed_java(self) -> None:
        """Games share Java's generators, so each sets them before it moves."""
        seed = int(self.np_random.integers(2**62))
        for k, random in enumerate(self._randoms):
            random.setSeed(seed + k)

    def _read(self, response: Any) -> np.ndarray:
        """A response's observation, one-hot [height, width, planes] uint8."""
        raw = np.array(response.observation).reshape(len(self._last), -1)
        self._raw = raw = np.minimum(raw.clip(0), self._last)
        observation = np.zeros(self.observation_space.shape, np.uint8)
        observation.reshape(len(self._cells), -1)[self._cells, raw + self._first] = 1
        return observation


def _find_package() -> Path:
    found = importlib.util.find_spec("gym_microrts")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'gym_microrts'", name="gym_microrts")
    return Path(found.submodule_search_locations[0])


def _start_java(folder: Path) -> Any:
    """The module jpype, with a Java machine that knows microRTS; one serves a whole process."""
    import jpype

    if jpype.isJVMStarted():
        return jpype
    if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        raise EnvironmentSetupError(
            "environment 'microrts' needs Java 11 or newer, which is not installed; install it "
            "with: apt-get install openjdk-17-jre-headless"
        )
    with silenced():
        # The bots bring old copies of the game, so the game itself comes first.
        jars = sorted(map(str, folder.glob("*.jar")), key=lambda jar: not jar.endswith("rts.jar"))
        jpype.startJVM(*JVM_OPTIONS, classpath=jars, convertStrings=False)
    nowhere = jpype.JClass("java.io.OutputStream").nullOutputStream()
    system, stream = jpype.JClass("java.lang.System"), jpype.JClass("java.io.PrintStream")
    system.setOut(stream(nowhere))  # Maps and bots tell where they are and what they think.
    return jpype


def _find_randoms(kind: Any, instance: Any = None) -> list:
    """The generators in the fields of an instance, or in the static ones of a class."""
    found = []
    while kind is not None:
        for field in kind.getDeclaredFields():
            is_static = bool(field.getModifiers() & 8)
            if str(field.getType().getName()) == "java.util.Random" and is_static == (not instance):
                field.setAccessible(True)
                if (random := field.get(instance)) is not None:
                    found.append(random)
        kind = kind.getSuperclass()
    return found
