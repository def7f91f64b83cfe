"""check_env passes a right environment, and each planted bug turns it red."""

import numpy as np
import pytest
from gymnasium import spaces

from pufferlib.env import PufferEnv, check_env
from pufferlib.exceptions import APIUsageError


class Walk(PufferEnv):
    """Three agents walk up or down from a random place; the last one pauses between episodes.

    Observes place and clock. Terminates beyond 3 from the origin, truncates after 7 steps.
    """

    says = None

    def __init__(self, buf=None):
        self.single_observation_space = spaces.Box(-100, 100, (2,))
        self.single_action_space = spaces.Discrete(2)
        self.num_agents = 3
        super().__init__(buf)
        self.random = None

    def reset(self, seed=None):
        if seed is not None or self.random is None:
            self.random = np.random.default_rng(seed)
        self.place, self.clock, self.away = np.zeros((3, 3))
        self.terminals[:] = self.truncations[:] = False
        self.masks[:] = True
        for row in range(3):
            self.begin(row)
        return self.observations, []

    def begin(self, row):
        self.place[row], self.clock[row] = self.random.normal(), 0
        self.observations[row] = self.place[row], self.clock[row]

    def step(self, actions):
        if self.random is None:
            raise APIUsageError("reset first")
        self.rewards[:] = 0
        self.terminals[:] = self.truncations[:] = False
        for row in range(3):
            if self.away[row]:
                self.wait(row)
            else:
                self.advance(row, actions[row])
        return self.observations, self.rewards, self.terminals, self.truncations, []

    def wait(self, row):
        self.away[row] -= 1
        if not self.away[row]:
            self.masks[row] = True
            self.begin(row)

    def advance(self, row, action):
        self.place[row] += 2 * action - 1
        self.clock[row] += 1
        self.rewards[row] = self.place[row]
        self.observations[row] = self.place[row], self.clock[row]
        terminated = abs(self.place[row]) > 3
        if terminated or self.clock[row] == 7:
            self.end(row, terminated)

    def end(self, row, terminated):
        self.final_observations[row] = self.observations[row]
        self.terminals[row], self.truncations[row] = terminated, not terminated
        if row == 2:
            self.away[row] = 2
            self.masks[row] = False
            self.observations[row] = 0
        else:
            self.begin(row)


# ---------------------------------------------------------------- planted bugs


class UnseededChance(Walk):
    says = "observations differ at step 0 between two runs with the same seed and actions"

    def begin(self, row):
        super().begin(row)
        self.observations[row, 0] += np.random.default_rng().random()


class IgnoredSeed(Walk):
    says = "8 different seeds gave the same trajectory; use the seed"

    def reset(self, seed=None):
        return super().reset(None if seed is None else 7)


class FixedSeed(Walk):
    says = "8 resets without a seed gave the same trajectory"

    def reset(self, seed=None):
        return super().reset(0 if seed is None else seed)


class OneWorld(Walk):
    says = "all rows are equal after each reset; give every world a seed of its own"

    def reset(self, seed=None):
        result = super().reset(seed)
        self.place[:] = self.place[0]
        self.observations[:] = self.observations[0]
        return result


class Outside(Walk):
    says = r"observation \[1, 0\] is 1000.0 at step 1, outside the bounds \[-100.0, 100.0\]"

    def step(self, actions):
        result = super().step(actions)
        self.observations[1, 0] = 1000
        return result


class NaNObservation(Walk):
    says = r"observation \[0, 1\] is nan at reset, outside the bounds"

    def reset(self, seed=None):
        result = super().reset(seed)
        self.observations[0, 1] = np.nan
        return result


class WrongDtype(Walk):
    says = r"rewards is float64 \[3\], expected float32 \[3\]; write into the rows"

    def __init__(self, buf=None):
        super().__init__(buf)
        self.rewards = np.zeros(3)


class CopiedObservations(Walk):
    says = "step returned observations that are not the environment's own rows; write into self.obs"

    def step(self, actions):
        observations, *rest = super().step(actions)
        return observations.copy(), *rest


class CopiedReset(Walk):
    says = "reset returned observations that are not the environment's own rows"

    def reset(self, seed=None):
        return super().reset(seed)[0].copy(), []


class ListRewards(Walk):
    says = "step returned rewards that are not the environment's own rows"

    def step(self, actions):
        observations, rewards, *rest = super().step(actions)
        return observations, rewards.tolist(), *rest


class StaleFlag(Walk):
    says = r"terminals at step \d+ are left over from the step before"

    def step(self, actions):
        before = self.terminals[0]
        result = super().step(actions)
        self.terminals[0] |= before
        return result


class StaleReward(Walk):
    says = r"rewards at step \d+ are left over from the step before"

    def step(self, actions):
        before = self.rewards[0]
        result = super().step(actions)
        self.rewards[0] += before
        return result


class FlagAfterReset(Walk):
    says = "truncations are set after reset; clear them there"

    def reset(self, seed=None):
        result = super().reset(seed)
        self.truncations[1] = True
        return result


class NoFinalObservation(Walk):
    says = r"final_observations of row 1 are not written at step \d+, at which its episode ended"

    def end(self, row, terminated):
        kept = self.final_observations[1].copy()
        super().end(row, terminated)
        self.final_observations[1] = kept


class MaskedObservation(Walk):
    says = r"row 2 is masked at step \d+ and its observation is not zero"

    def wait(self, row):
        super().wait(row)
        self.observations[row, 0] = 1


class MaskedReward(Walk):
    says = r"row 2 is rewarded at step \d+ but was absent before; an absent agent has reward zero"

    def wait(self, row):
        super().wait(row)
        self.rewards[row] = 1


class MaskedFlag(Walk):
    says = r"row 2 is flagged at step \d+ but was absent before; an absent agent has no flag"

    def wait(self, row):
        super().wait(row)
        self.terminals[row] = True


class NaNReward(Walk):
    says = r"reward of row 1 is nan at step \d+; expected a finite one"

    def end(self, row, terminated):
        super().end(row, terminated)
        self.rewards[1] = np.nan


class DictInfos(Walk):
    says = r"step returned infos \{\}; expected a list of dicts"

    def step(self, actions):
        return *super().step(actions)[:4], {}


class StringInfos(Walk):
    says = r"reset returned infos \['x'\]; expected a list of dicts"

    def reset(self, seed=None):
        return super().reset(seed)[0], ["x"]


class BareReset(Walk):
    says = r"reset must return \(observations, infos\)"

    def reset(self, seed=None):
        return super().reset(seed)[0]


class FourValues(Walk):
    says = "step must return"

    def step(self, actions):
        return super().step(actions)[:4]


class StepsAtOnce(Walk):
    says = "step before the first reset went through; raise APIUsageError instead"

    def __init__(self, buf=None):
        super().__init__(buf)
        self.reset()


class StumblesBeforeReset(Walk):
    says = r"step before the first reset raised AttributeError\(.*; raise APIUsageError instead"

    def __init__(self, buf=None):
        super().__init__(buf)
        self.random = np.random.default_rng()


class ClosesOnce(Walk):
    says = r"the second close raised ValueError\('closed'\); make it do nothing instead"
    closed = False

    def close(self):
        if self.closed:
            raise ValueError("closed")
        self.closed = True


class SilentRestart(Walk):
    says = r"world 0 began a new episode at step \d+ without a flag"

    def end(self, row, terminated):
        super().end(row, terminated)
        if not terminated:
            self.truncations[0] = False


class SilentRestartOfTheState(SilentRestart):
    """The clock is hidden from the observation and seen in the bytes of the state."""

    def advance(self, row, action):
        super().advance(row, action)
        self.observations[row, 1] = 0

    def world_states(self):
        return np.stack([self.place, self.clock], 1).view(np.uint8)


BUGS = [
    case
    for case in list(globals().values())
    if isinstance(case, type) and issubclass(case, Walk) and case is not Walk
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug):
    with pytest.raises(APIUsageError, match=f"^{bug.__name__}: {bug.says}"):
        check_env(bug)


def test_a_right_environment_passes_and_nothing_is_left_untried():
    report = check_env(Walk)
    assert report.steps == 500
    assert report.terminations > 0
    assert report.truncations > 0
    assert report.absences > 0
    assert report.untried == ()


def test_what_was_not_put_to_the_test_is_reported():
    class Endless(PufferEnv):
        def __init__(self):
            self.single_observation_space = spaces.Box(0, 1, (1,))
            self.single_action_space = spaces.Box(-1, 1, (2,))
            self.num_agents = 1
            super().__init__()

        def reset(self, seed=None):
            self.observations[:] = 0
            self.masks[:] = True
            return self.observations, []

        def step(self, actions):
            return self.observations, self.rewards, self.terminals, self.truncations, []

    report = check_env(Endless(), steps=20)
    assert (report.steps, report.terminations, report.truncations) == (20, 0, 0)
    assert [rule.partition(":")[0] for rule in report.untried] == [
        "step before reset, close",
        "flags, final observations",
        "termination",
        "truncation",
        "absent agents",
        "seeds",
        "rows differ",
        "restarts",
    ]


def test_an_instance_stays_open():
    env = Walk()
    env.close = None
    assert check_env(env).untried == (
        "step before reset, close: an instance was given, not a creator",
    )


def test_rules_that_can_be_part_of_the_game_can_be_switched_off():
    assert "rows differ" in check_env(OneWorld, rows_differ=False).untried[0]
    assert "restarts" in check_env(SilentRestart, restarts_flagged=False).untried[0]


class Line(PufferEnv):
    """One agent whose observation walks along `path` in an endless circle."""

    path: tuple = ()

    def __init__(self):
        self.single_observation_space = spaces.Box(-9, 9, (1,))
        self.single_action_space = spaces.Discrete(2)
        self.num_agents = 1
        super().__init__()

    def reset(self, seed=None):
        self.clock = 0
        self.observations[:] = self.path[0]
        self.masks[:] = True
        return self.observations, []

    def step(self, actions):
        self.clock += 1
        self.observations[:] = self.path[self.clock % len(self.path)]
        return self.observations, self.rewards, self.terminals, self.truncations, []


@pytest.mark.parametrize("path", [(0, 1), (0, 1, 2, 1, 0, -1), (0, 3, 0, 3, 3)])
def test_coming_back_by_usual_steps_is_no_restart(path):
    env = Line()
    env.path = path
    assert not any(rule.startswith("restarts") for rule in check_env(env).untried)


def test_a_counter_that_falls_back_is_a_restart():
    env = Line()
    env.path = (0, 1, 2, 3, 4)
    with pytest.raises(APIUsageError, match="Line: world 0 began a new episode at step 5 without"):
        check_env(env)


def test_only_a_puffer_env_is_checked():
    with pytest.raises(APIUsageError, match="check_env got a dict, expected a PufferEnv; wrap a"):
        check_env(dict)
    with pytest.raises(APIUsageError, match="steps is 0; expected at least 1"):
        check_env(Walk, steps=0)
