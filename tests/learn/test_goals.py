"""The trainer learns: a small board in seconds, every native game to its goal when asked."""

import pytest

from pufferlib import checkpoint, registry, run
from pufferlib.cli import main
from pufferlib.config import load_config

GOALS = [
    name
    for name in registry.names()
    if registry.find(name).is_native and registry.find(name).config_path.is_file()
]


def test_a_small_board_is_learned_in_seconds(tmp_path, capsys):
    folder = tmp_path / "run"
    code = main(
        f"train squared --run.dir {folder} --run.tensorboard false --env.size 5 --vec.num-envs 256 "
        "--train.horizon 16 --train.minibatch-size 1024 --train.total-timesteps 200000 "
        "--train.learning-rate 0.005 --train.ent-coef 0.02 --train.seed 1 --train.threads 1".split()
    )
    assert code == 0
    entry = registry.find("squared")
    loaded = checkpoint.load(checkpoint.latest(folder), env_name="squared")
    config = run.Config.from_toml(loaded.meta["config"])
    trained = run.evaluate(entry, config, loaded=loaded, episodes=200)
    chance = run.evaluate(entry, config, loaded=None, episodes=200)
    assert trained["score"]["mean"] > 0.95 > 0.6 > chance["score"]["mean"]
    assert trained["score"]["count"] == 200


@pytest.mark.slow
@pytest.mark.parametrize("name", GOALS)
def test_the_shipped_settings_reach_the_goal(name, tmp_path):
    entry = registry.find(name)
    config = load_config(
        name, env_config_path=entry.config_path, overrides={"run.dir": str(tmp_path / "run")}
    )
    assert config.goal.score is not None
    result = run.train(entry, config)
    loaded = checkpoint.load(result["checkpoint"], env_name=name)
    reached = run.evaluate(entry, config, loaded=loaded, episodes=100)[config.goal.metric]["mean"]
    assert reached >= config.goal.score
