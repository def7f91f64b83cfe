"""Settings: layers, strictness, provenance, round trip and the numbers that must divide."""

import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferlib import registry
from pufferlib.config import (
    SECTIONS,
    Config,
    describe,
    load_config,
    parse_flags,
    settings,
    validate,
)
from pufferlib.exceptions import ConfigError
from pufferlib.native.core import Params

ENVS = Path(__file__).parents[2] / "envs"


def flags(*tokens):
    return load_config("breakout", overrides=tokens)


def test_every_setting_has_a_sentence_and_a_default_that_it_accepts():
    for setting in settings().values():
        assert setting.sentence.endswith(".") and setting.sentence[0].isupper(), setting.key
        assert setting.coerce(setting.default, source="test") == setting.default


def test_settings_are_frozen():
    with pytest.raises(FrozenInstanceError, match="seed"):
        Config().train.seed = 2


def test_layers_overlay_in_order_and_each_value_knows_its_source(tmp_path):
    folder = tmp_path / "breakout"
    folder.mkdir()
    (folder / "config.toml").write_text(
        "[train]\nseed = 2\ngamma = 0.9\nhorizon = 32\n[env]\nbricks = 3"
    )
    mine = tmp_path / "mine.toml"
    mine.write_text("[train]\ngamma = 0.8\nhorizon = 16")
    config = load_config(
        "breakout",
        env_config_path=folder / "config.toml",
        files=[mine],
        overrides=["--train.horizon", "8"],
    )
    assert (config.train.seed, config.train.gamma, config.train.horizon) == (2, 0.8, 8)
    assert config.env == {"bricks": 3}
    assert config.source("train.seed") == "breakout/config.toml"
    assert config.source("train.gamma") == str(mine)
    assert config.source("train.horizon") == "--train.horizon"
    assert config.source("train.clip_coef") == "default"


@pytest.mark.parametrize("text", ["1000000", "1e6", "1_000_000", "1000000.0"])
def test_whole_numbers_may_be_written_as_people_write_them(text):
    steps = flags("--train.total-timesteps", text).train.total_timesteps
    assert steps == 1_000_000 and type(steps) is int


def test_a_float_setting_takes_a_whole_number():
    gamma = flags("--train.gamma=1").train.gamma
    assert gamma == 1.0 and type(gamma) is float


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["--train.anneal-lr"], True),
        (["--train.anneal-lr", "false"], False),
        (["--train.anneal_lr=false"], False),
        (["--no-train.anneal-lr"], False),
        (["--train.anneal-lr", "--train.seed", "3"], True),
    ],
)
def test_booleans_are_bare_or_true_or_false(tokens, expected):
    assert flags(*tokens).train.anneal_lr is expected


@pytest.mark.parametrize("text", ["False", "0", "1", "no", "off", ""])
def test_nothing_else_is_a_boolean(text):
    with pytest.raises(
        ConfigError, match=re.escape(f"train.anneal_lr is {text!r}") + ".*true or false"
    ):
        flags(f"--train.anneal-lr={text}")


def test_none_is_spelled_none_where_it_is_allowed():
    assert flags("--goal.score", "3").override(["--goal.score", "none"]).goal.score is None
    with pytest.raises(ConfigError, match=r"train.seed is 'none'.*a whole number of at least 0"):
        flags("--train.seed", "none")


def test_a_setting_may_hold_a_number_or_a_word():
    assert flags("--vec.num-workers", "2").vec.num_workers == 2
    assert flags("--vec.num-workers", "auto").vec.num_workers == "auto"
    with pytest.raises(ConfigError, match=r"'many'.*a whole number of at least 1 or auto"):
        flags("--vec.num-workers", "many")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("train.seed", 1.5, "a whole number of at least 0"),
        ("train.seed", True, "a whole number of at least 0"),
        ("train.seed", -1, "a whole number of at least 0"),
        ("train.total_timesteps", 0, "a whole number of at least 1"),
        ("train.total_timesteps", "1e999", "a whole number of at least 1"),
        ("train.learning_rate", 0, "a number above 0"),
        ("train.learning_rate", "nan", "a number above 0"),
        ("train.gamma", 1.01, "a number of at least 0 and at most 1"),
        ("train.adam_beta1", 1, "a number of at least 0 and below 1"),
        ("train.optimizer", "sgd", "adam or muon"),
        ("train.optimizer", 3, "adam or muon"),
        ("run.dir", 3, "text"),
        ("train.horizon", [64], "a whole number of at least 1"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_what_is_expected(key, value, expected):
    text = f"{key} is {value!r} (from a test); expected {expected}"
    with pytest.raises(ConfigError, match=f"^{re.escape(text)}$"):
        Config().override({key: value}, source="a test")


@pytest.mark.parametrize(
    ("flag", "nearest"),
    [
        ("--train.learning-rat", "train.learning-rate"),
        ("--trian.seed", "train.seed"),
        ("--seed", "train.seed"),
        ("--sed", "train.seed"),
        ("--vec.envs", "vec.num-envs"),
        ("--policy.zzz", "policy."),
    ],
)
def test_a_misspelt_flag_is_refused_naming_the_nearest(flag, nearest):
    with pytest.raises(
        ConfigError, match=rf"from {flag}\) is not a setting; did you mean --{nearest}"
    ):
        flags(flag, "1")


def test_a_misspelt_key_or_section_of_a_file_is_refused_naming_the_nearest(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[train]\nhorizont = 3")
    with pytest.raises(
        ConfigError, match=r"mine.toml\) is not a setting; did you mean train.horizon?"
    ):
        load_config("breakout", files=[path])
    path.write_text("[tarin]\nhorizon = 3")
    with pytest.raises(ConfigError, match=r"\[tarin\] .* did you mean \[train\]\?"):
        load_config("breakout", files=[path])
    path.write_text("horizon = 3")
    with pytest.raises(ConfigError, match=r"did you mean train.horizon\?"):
        load_config("breakout", files=[path])


def test_tables_of_the_registry_and_of_the_doctor_are_no_settings(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text('[package]\nrequires = ["nle"]\n[doctor]\ncases = [{}]\n[train]\nseed = 4\n')
    config = load_config("x", env_config_path=path)
    assert config == Config(env_name="x").override({"train.seed": 4})


def test_files_that_cannot_be_read_are_refused(tmp_path):
    path = tmp_path / "mine.toml"
    with pytest.raises(ConfigError, match=r"cannot read the config .*mine.toml"):
        load_config("breakout", files=[path])
    path.write_text("[train")
    with pytest.raises(ConfigError, match=r"mine.toml is not valid TOML"):
        load_config("breakout", files=[path])
    path.write_text('env_name = "pong"')
    with pytest.raises(ConfigError, match="a config of 'pong'; this run is of 'breakout'"):
        load_config("breakout", files=[path])


def test_what_is_not_a_flag_is_refused():
    with pytest.raises(ConfigError, match=r"'train.seed=3' is not a flag"):
        parse_flags(["train.seed=3"])
    with pytest.raises(ConfigError, match=r"--train.seed needs a value: a whole number"):
        parse_flags(["--train.seed"])
    with pytest.raises(ConfigError, match=r"--no-train.seed needs a value: a whole number"):
        parse_flags(["--no-train.seed"])


def test_a_flag_may_be_negative_and_the_last_one_counts():
    config = flags("--goal.score", "-3", "--train.seed", "1", "--train.seed", "2")
    assert config.goal.score == -3.0 and config.train.seed == 2


def test_parameters_of_the_environment_keep_the_type_they_spell():
    tokens = {"a": "3", "b": ".5", "c": "true", "d": "text", "e": '["x", 2]', "f": "inf"}
    config = load_config("x", overrides=[f"--env.{name}={text}" for name, text in tokens.items()])
    assert config.env == {"a": 3, "b": 0.5, "c": True, "d": "text", "e": ["x", 2], "f": "inf"}
    assert [type(config.env[name]) for name in "abc"] == [int, float, bool]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: text != "none"),
    lambda inner: st.lists(inner.filter(lambda v: v is not None), max_size=3),
    max_leaves=5,
)  # fmt: skip


@given(
    env=st.dictionaries(st.from_regex("[a-z][a-z0-9_]{0,8}", fullmatch=True), VALUES, max_size=4),
    rate=st.floats(min_value=1e-12, max_value=1e6),
    steps=st.integers(1, 2**60),
    folder=st.text(st.characters(exclude_categories=["Cs"])),
)
def test_a_resolved_config_reads_back_equal(env, rate, steps, folder):
    values = {"train.learning_rate": rate, "train.total_timesteps": steps, "run.dir": folder}
    config = Config(env=env, env_name="breakout").override(values, source="a test")
    assert Config.from_toml(config.to_toml()) == config


def test_a_resolved_config_tells_where_its_values_came_from():
    assert "seed = 7  # --train.seed" in flags("--train.seed", "7").to_toml()


def test_help_shows_every_flag_with_its_sentence():
    text = describe()
    for setting in settings().values():
        assert f"{setting.flag} " in text and setting.sentence in text


@pytest.mark.parametrize(
    ("size", "agents", "message"),
    [
        (1000, 64, "1000 .* not a multiple of the horizon 64.* 4096 rows .*: 512 and 1024"),
        (192, 64, "192 .* does not divide the 4096 rows .*64 agents x horizon 64.*: 128 and 256"),
        (8192, 8, "8192 .* is more than the 512 rows .*8 agents x horizon 64.*: 512$"),
        (1, 10, "1 .* not a multiple of the horizon 64.*: 64$"),
        (512, 10, "512 .* does not divide the 640 rows.*: 320 and 640"),
    ],
)
def test_a_minibatch_that_does_not_divide_is_refused_with_the_nearest(size, agents, message):
    with pytest.raises(ConfigError, match=f"^train.minibatch_size {message}"):
        validate(Config().override({"train.minibatch_size": size}), agents)


@given(horizon=st.integers(1, 99), agents=st.integers(1, 99), segments=st.integers(1, 120))
def test_accepted_minibatches_drop_no_row(horizon, agents, segments):
    values = {"train.horizon": horizon, "train.minibatch_size": horizon * segments}
    fits = agents % segments == 0
    try:
        validate(Config().override(values), agents)
    except ConfigError:
        assert not fits
    else:
        assert fits


# Python environments of many agents; theirs are known once they are made.
MANY_AGENTS = {"magent": 162, "nmmo": 128}


@pytest.mark.parametrize("path", sorted(ENVS.glob("*/config.toml")), ids=lambda p: p.parent.name)
def test_every_shipped_config_is_valid(path):
    config = load_config(path.parent.name, env_config_path=path)
    entry = registry.find(path.parent.name)
    native = entry.is_native
    assert config.goal.score is not None or not native
    agents = MANY_AGENTS.get(entry.name, 1)
    if native:
        agents = Params(entry.library, dict(config.env)).num_agents
    validate(config, config.vec.num_envs * agents)


def test_sections_are_those_of_the_documentation():
    assert list(SECTIONS) == ["train", "vec", "policy", "run", "goal"]
