"""Gymnasium and old Gym environments as a PufferEnv."""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from pufferlib.buffers import allocate
from pufferlib.emulation import EpisodeStats, GymnasiumPufferEnv, GymToGymnasium, convert_space
from pufferlib.env import check_env
from pufferlib.exceptions import APIUsageError, NonFiniteError

GO = np.zeros(1, np.int32)


class Count(gymnasium.Env):
    """Observes the step of the episode and a random number drawn at its reset."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, horizon=3, terminates=False, infos=None):
        self.horizon, self.terminates = horizon, terminates
        self.infos = infos or {}
        self.seeds = []
        self.closed = 0

    def observe(self):
        return np.array([self.clock, self.luck], np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.clock = 0
        self.luck = self.np_random.random()
        return self.observe(), {}

    def step(self, action):
        self.clock += 1
        ended = self.clock == self.horizon
        info = self.infos.get(self.clock, {})
        terminated = ended and self.terminates
        return self.observe(), 0.5, terminated, ended and not self.terminates, info

    def close(self):
        self.closed += 1


class Returns(gymnasium.Env):
    """Returns what it is told to, in turn; the last one for ever."""

    def __init__(self, space, *values, reward=0.0):
        self.observation_space = space
        self.action_space = spaces.Discrete(2)
        self.values = list(values)
        self.reward = reward

    def observe(self):
        return self.values.pop(0) if len(self.values) > 1 else self.values[0]

    def reset(self, seed=None, options=None):
        return self.observe(), {}

    def step(self, action):
        return self.observe(), self.reward, False, False, {}


class Mixed(Count):
    """A nested observation and a structured action, both random."""

    observation_space = spaces.Dict(
        [
            ("z", spaces.Box(0, 255, (3, 2), np.uint8)),
            ("a", spaces.Tuple([spaces.Discrete(5, start=-2), spaces.Box(-1, 1, (), np.float64)])),
        ]
    )
    action_space = spaces.Dict(a=spaces.Discrete(3, start=1), b=spaces.MultiBinary(2))

    def observe(self):
        return {
            "a": (int(self.np_random.integers(-2, 3)), np.float64(self.luck)),
            "z": self.np_random.integers(0, 256, (3, 2), np.uint8),
        }

    def step(self, action):
        assert self.action_space.contains(action)
        return super().step(action)


def emulate(env, **arguments):
    return GymnasiumPufferEnv(env=env, **arguments)


def begin(env):
    env.reset()
    env.step(GO)


# ---------------------------------------------------------------- contract


@pytest.mark.parametrize("env", [Count, Mixed, lambda: gymnasium.make("CartPole-v1")])
def test_an_emulated_environment_passes_check_env(env):
    report = check_env(lambda: emulate(env()), steps=100)
    assert report.terminations + report.truncations > 0
    assert not [rule for rule in report.untried if rule.startswith("seeds")]


def test_a_flat_box_and_discrete_keep_their_spaces():
    env = emulate(Count())
    assert env.single_observation_space is Count.observation_space
    assert env.single_action_space is Count.action_space
    assert env.emulated
    assert env.unwrapped is env.env.unwrapped


def test_packed_spaces_stand_beside_the_originals():
    env = emulate(Mixed())
    assert env.env_single_observation_space is Mixed.observation_space
    assert env.env_single_action_space is Mixed.action_space
    assert env.single_observation_space.original is Mixed.observation_space
    assert env.single_action_space == spaces.MultiDiscrete([3, 2, 2])


def test_a_creator_gets_its_arguments_and_the_row_is_written():
    rows = allocate(3, Count.observation_space, Count.action_space)
    before = rows.observations[[0, 2]].copy()
    env = GymnasiumPufferEnv(
        env_creator=Count, env_args=(2,), env_kwargs={"terminates": True}, buf=rows.rows(1, 2)
    )
    env.reset(seed=1)
    env.step(GO)
    assert rows.observations[1, 0] == 1
    assert rows.rewards.tolist() == [0, 0.5, 0]
    assert np.array_equal(rows.observations[[0, 2]], before)
    assert env.step(GO)[2].tolist() == [True]


def test_rebind_moves_the_environment_to_other_rows():
    env = emulate(Count())
    rows = allocate(1, Count.observation_space, Count.action_space)
    env.reset(seed=1)
    env.rebind(rows)
    env.step(GO)
    assert rows.observations[0, 0] == 1
    assert env.step(GO)[0] is rows.observations


@pytest.mark.parametrize("terminates", [False, True])
def test_episodes_restart_in_the_same_step_and_keep_the_final_observation(terminates):
    env = emulate(Count(horizon=3, terminates=terminates))
    env.reset(seed=5)
    luck = env.observations[0, 1].copy()
    seen = []
    for _ in range(7):
        observations, _, terminals, truncations, _ = env.step(GO)
        seen.append(observations[0, 0].item())
        ended = terminals if terminates else truncations
        assert not (truncations if terminates else terminals)[0]
        assert ended[0] == (len(seen) % 3 == 0)
        if len(seen) == 3:
            assert env.final_observations[0].tolist() == [3, luck]
            assert observations[0, 1] != luck
    assert seen == [1, 2, 0, 1, 2, 0, 1]


def test_a_termination_at_the_time_limit_is_no_truncation():
    class Both(Count):
        def step(self, action):
            observation, reward, _, _, info = super().step(action)
            return observation, reward, True, True, info

    env = emulate(Both())
    env.reset()
    _, _, terminals, truncations, _ = env.step(GO)
    assert (terminals[0], truncations[0]) == (True, False)


def test_the_restart_passes_no_seed_and_the_constructor_seed_is_used_once():
    env = emulate(Count(horizon=1), seed=9)
    env.reset()
    env.step(GO)
    env.reset()
    env.reset(seed=np.uint64(4))
    assert env.env.seeds == [9, None, None, 4]
    assert type(env.env.seeds[-1]) is int


def test_results_are_the_rows_themselves_and_copies_hold_every_step():
    env = emulate(Count(horizon=100))  # O-17
    env.reset()
    views, copies = [], []
    for _ in range(5):
        observations = env.step(GO)[0]
        assert observations is env.observations
        views.append(observations)
        copies.append(observations.copy())
    assert [int(copy[0, 0]) for copy in copies] == [1, 2, 3, 4, 5]
    assert {int(view[0, 0]) for view in views} == {5}


def test_an_environment_that_reuses_its_array_does_not_share_it():
    array = np.zeros(2, np.float32)
    env = emulate(Returns(spaces.Box(-9, 9, (2,)), array))
    env.reset()
    array[0] = 5
    assert env.observations[0, 0] == 0


# ---------------------------------------------------------------- infos


def test_infos_are_empty_or_one_dict():
    env = emulate(Count(horizon=9, infos={2: {"score": 1}}))
    assert env.reset()[1] == []
    assert env.step(GO)[4] == []
    assert env.step(GO)[4] == [{"score": 1}]


def test_the_last_info_of_an_episode_has_its_return_and_length():
    env = emulate(Count(horizon=3, infos={3: {"score": 7}}))
    env.reset()
    for _ in range(2):
        infos = [env.step(GO)[4] for _ in range(3)]
        assert infos == [
            [],
            [],
            [{"episode_return": 1.5, "episode_length": 3, "score": 7}],
        ]


def test_returns_are_summed_in_double_precision():
    class Large(Count):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, np.float32(2**24 if self.clock == 1 else 1), *rest

    env = emulate(Large(horizon=3))
    env.reset()
    infos = [env.step(GO)[4] for _ in range(3)]
    assert infos[-1][0]["episode_return"] == 2**24 + 2


def test_figures_that_the_environment_provides_are_not_doubled():
    env = emulate(EpisodeStats(Count(horizon=2, infos={2: {"episode_length": 99}})))
    env.reset()
    env.step(GO)
    assert env.step(GO)[4] == [{"episode_return": 1.0, "episode_length": 99}]


def test_infos_of_any_content_pass_and_stay_as_they_were():
    shared = {"map": np.arange(3), "note": "x", "none": None, "nested": {"a": 1}}
    env = emulate(Count(horizon=9, infos={1: shared, 2: shared}))
    env.reset()
    infos = env.step(GO)[4]
    shared["later"] = 1
    assert list(infos[0]) == ["map", "note", "none", "nested"]


def test_the_info_of_the_next_reset_follows_the_last_info():
    class Masks(Count):
        def reset(self, **arguments):
            return super().reset(**arguments)[0], {"action_mask": self.clock}

    env = emulate(Masks(horizon=1))
    assert env.reset()[1] == [{"action_mask": 0}]
    assert env.step(GO)[4] == [{"episode_return": 0.5, "episode_length": 1}, {"action_mask": 0}]


def test_episode_stats_work_alone():
    env = EpisodeStats(Count(horizon=2))
    env.reset()
    for _ in range(2):
        assert env.step(0)[4] == {}
        assert env.step(0)[4] == {"episode_return": 1.0, "episode_length": 2}
        env.reset()


# ---------------------------------------------------------------- refusals

FLOATS = spaces.Box(-1, 1, (4,), np.float32)


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (spaces.Box(-9, 9, (4,), np.int32), np.zeros(4, np.float32), "is float32 [4], expected i"),
        (FLOATS, [0.0] * 4, "is a list, expected float32 [4]; return a NumPy array"),
        (FLOATS, np.zeros((4, 1), np.float32), "is float32 [4, 1], expected float32 [4]"),
        (FLOATS, np.full(4, np.nan, np.float32), "is nan at [0], outside the bounds [-1.0, 1.0]"),
        (FLOATS, np.full(4, 2, np.float32), "is 2.0 at [0], outside the bounds [-1.0, 1.0]"),
    ],
)
def test_a_bad_observation_fails_at_the_first_reset_or_step(space, value, message):
    good = np.zeros(space.shape, space.dtype)  # O-02
    for values in ([value], [good, value]):
        env = emulate(Returns(space, *values))
        with pytest.raises(APIUsageError) as error:
            begin(env)
        assert str(error.value).startswith(f"Returns: observation {message}")


def test_a_wrong_shape_or_dtype_is_refused_at_any_later_step():
    good = np.zeros(4, np.float32)
    for bad in (np.zeros(1, np.float32), np.zeros(4, np.int64), None):
        env = emulate(Returns(FLOATS, good, good, good, bad))
        env.reset()
        env.step(GO)
        env.step(GO)
        with pytest.raises(APIUsageError, match="Returns: observation is"):
            env.step(GO)


def test_a_key_missing_at_a_later_step_is_refused_by_name():
    space = spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(2))
    good = {"a": 0, "b": 1}
    env = emulate(Returns(space, good, good, good, {"a": 0}))
    env.reset()
    env.step(GO)
    env.step(GO)
    with pytest.raises(APIUsageError, match="Returns: observation lacks the key 'b'"):
        env.step(GO)


def test_float64_for_float32_is_cast_by_value_with_one_warning():
    value = np.array([0.1, -1, 1, 1e-40])
    env = emulate(Returns(FLOATS, value))
    with pytest.warns(UserWarning, match="Returns: observation is float64 and is cast to the"):
        env.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.step(GO)
    assert np.array_equal(env.observations[0], value.astype(np.float32))


def test_a_space_without_fixed_size_is_refused_at_construction():
    space = spaces.Dict(head=spaces.Box(0, 1, (2,)), tail=spaces.Sequence(spaces.Box(0, 1, (2,))))
    with pytest.raises(
        APIUsageError, match=r"^Returns: observation space has no fixed size \(tail: Sequence\)"
    ):
        emulate(Returns(space, {}))  # O-03


@pytest.mark.parametrize("reward", [float("nan"), np.float32("inf"), -np.inf])
def test_a_reward_that_is_not_finite_names_environment_and_step(reward):
    env = emulate(Returns(FLOATS, np.zeros(4, np.float32), reward=reward))
    env.reset()
    with pytest.raises(NonFiniteError, match=r"^Returns: reward is -?(nan|inf) at step 1 of the"):
        env.step(GO)
    assert env.rewards[0] == 0


@pytest.mark.parametrize("reward", [None, "1", np.zeros(2)])
def test_a_reward_that_is_no_number_is_refused(reward):
    env = emulate(Returns(FLOATS, np.zeros(4, np.float32), reward=reward))
    env.reset()
    with pytest.raises(APIUsageError, match=r"^Returns: reward is .*; expected one number"):
        env.step(GO)


def test_an_action_out_of_range_is_refused():
    env = emulate(Count())
    env.reset()
    with pytest.raises(APIUsageError, match="expected one integer from 0 to 1"):
        env.step(np.array([2]))


def test_order_of_calls_is_kept():
    env = emulate(Count())
    with pytest.raises(APIUsageError, match="Count: step before reset; call reset first"):
        env.step(GO)
    env.reset()
    env.close()
    env.close()
    assert env.env.closed == 1
    with pytest.raises(APIUsageError, match="Count: step after close; create a new environment"):
        env.step(GO)
    with pytest.raises(APIUsageError, match="Count: reset after close; create a new environment"):
        env.reset()


class Bare:
    """Neither Gymnasium nor old Gym."""

    observation_space = FLOATS


class Agents(Bare):
    possible_agents = ["a"]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Count, "env is the class Count; pass an instance, or env_creator="),
        (Bare(), "Bare has no action_space, reset, step; expected a gymnasium.Env or an old"),
        (Agents(), "Agents has several agents"),
        (emulate(Count()), "GymnasiumPufferEnv is a PufferEnv already; use it as it is"),
    ],
)
def test_what_cannot_be_emulated_is_refused(env, message):
    with pytest.raises(APIUsageError) as error:
        emulate(env)
    assert str(error.value).startswith(message)


def test_an_environment_or_a_creator_is_needed_and_not_both():
    for arguments in ({}, {"env": Count(), "env_creator": Count}):
        with pytest.raises(APIUsageError, match="expected either env=… or env_creator=…"):
            GymnasiumPufferEnv(**arguments)


# ---------------------------------------------------------------- old Gym (O-30)


class Box:
    """Looks like the old Gym's space: only its class name and attributes are known."""

    def __init__(self, low, high, shape, dtype):
        self.low, self.high = np.full(shape, low, dtype), np.full(shape, high, dtype)
        self.shape, self.dtype = shape, np.dtype(dtype)


class Discrete:
    def __init__(self, n):
        self.n = n


class Dict:
    def __init__(self, members):
        self.spaces = members


class Text:
    pass


class Old:
    """Bare reset, four values a step, seed by its own method."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Discrete(2)
    limited = True

    def seed(self, seed):
        self.random = np.random.default_rng(seed)

    def reset(self):
        if not hasattr(self, "random"):
            self.seed(None)
        self.clock, self.luck = 0, self.random.random()
        return np.array([0, self.luck], np.float32)

    def step(self, action):
        self.clock += 1
        done = self.clock == 3
        info = {"TimeLimit.truncated": self.limited} if done else {}
        return np.array([self.clock, self.luck], np.float32), 1.0, done, info

    def render(self, mode="human"):
        return mode


class Later(Old):
    """The API of Gym 0.26 in a class that is no gymnasium.Env."""

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.seed(seed)
        return super().reset(), {"fresh": True}

    def step(self, action):
        observation, reward, done, info = super().step(action)
        return observation, reward, False, done, info


@pytest.mark.parametrize("old", [Old, Later])
def test_an_old_environment_is_recognised_and_passes_check_env(old):
    report = check_env(lambda: emulate(old()), steps=50)
    assert report.truncations > 0
    assert report.terminations == 0


def test_done_without_a_time_limit_is_a_termination():
    class Short(Old):
        limited = False

    report = check_env(lambda: emulate(Short()), steps=50)
    assert report.terminations > 0
    assert report.truncations == 0


def test_an_old_environment_renders_and_closes():
    env = emulate(Old())
    assert isinstance(env.env, GymToGymnasium)
    assert env.render() == "rgb_array"
    assert isinstance(env.unwrapped, Old)
    env.close()
    assert emulate(Later()).reset(seed=1)[1] == [{"fresh": True}]


def test_old_spaces_are_converted_by_class_name():
    old = Dict({"b": Discrete(3), "a": Box(0, 255, (2, 2), np.uint8)})
    space = convert_space(old)
    assert list(space.spaces) == ["b", "a"]
    assert space == spaces.Dict(
        [("b", spaces.Discrete(3)), ("a", spaces.Box(0, 255, (2, 2), np.uint8))]
    )
    with pytest.raises(APIUsageError, match=r"no Gymnasium space for a Text of .*; expected Box"):
        convert_space(Text())


class HalfOld(gymnasium.Env):
    """A gymnasium.Env by class, the old Gym by its results."""

    observation_space = FLOATS
    action_space = spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        return np.zeros(4, np.float32)

    def step(self, action):
        return np.zeros(4, np.float32), 1.0, False, {}


def test_a_gymnasium_env_with_the_old_results_is_refused_with_the_remedy():
    env = emulate(HalfOld())
    with pytest.raises(APIUsageError, match=r"HalfOld: reset returned a ndarray, .*GymToGymnasium"):
        env.reset()
    env = emulate(GymToGymnasium(HalfOld()))
    env.reset()
    assert env.step(GO)[1].tolist() == [1]

    class OldStep(HalfOld):
        def reset(self, seed=None, options=None):
            return super().reset(), {}

    env = emulate(OldStep())
    env.reset()
    with pytest.raises(APIUsageError, match=r"OldStep: step returned a tuple of 4, .*GymToGymn"):
        env.step(GO)
