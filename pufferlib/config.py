"""Settings: frozen dataclasses whose defaults are overlaid by files and flags, strictly.

The defaults live in the dataclasses below and nowhere else. On top of them come, in this order,
the environment's own `config.toml`, the user's files and the flags; every value remembers which
of them it came from.
"""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from pufferlib.exceptions import ConfigError


def _setting(default, sentence, *, low=None, above=None, high=None, below=None, choices=()) -> Any:
    """A field with its sentence and limits; `choices` limits the values that are text."""
    limits = {"low": low, "above": above, "high": high, "below": below, "choices": choices}
    return field(default=default, metadata={"sentence": sentence, **limits})


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How the trainer learns."""

    seed: int = _setting(1, "Root of all randomness: environments, weights and sampling.", low=0)
    total_timesteps: int = _setting(10_000_000, "Agent steps to train for.", low=1)
    horizon: int = _setting(64, "Steps of each agent per update; also a segment's length.", low=1)
    minibatch_size: int = _setting(8192, "Rows per gradient step, whole segments.", low=1)
    update_epochs: int = _setting(1, "Passes over the rows of an update.", low=1)
    learning_rate: float = _setting(0.003, "Step size of the optimizer.", above=0)
    anneal_lr: bool = _setting(True, "Lower the learning rate to its minimum over the run.")
    min_lr_ratio: float = _setting(
        0.0, "Last learning rate as a share of the first.", low=0, high=1
    )
    gamma: float = _setting(0.99, "Discount per step.", low=0, high=1)
    gae_lambda: float = _setting(0.95, "Decay of the advantage estimate.", low=0, high=1)
    clip_coef: float = _setting(
        0.2, "The probability ratio is clipped to 1 plus or minus this.", above=0
    )
    vf_coef: float = _setting(0.5, "Weight of the value loss.", low=0)
    vf_clip_coef: float = _setting(
        0.2, "Largest change of a value that counts; 0 turns it off.", low=0
    )
    ent_coef: float = _setting(0.01, "Weight of the entropy bonus.", low=0)
    max_grad_norm: float = _setting(0.5, "Gradients are scaled down to this norm.", above=0)
    normalize_advantage: bool = _setting(
        True, "Scale advantages to mean 0, deviation 1 per minibatch."
    )
    target_kl: float = _setting(
        0.0, "Ends an update's epochs above this divergence; 0 turns it off.", low=0
    )
    reward_clip: float = _setting(
        0.0, "Rewards are clipped to plus or minus this; 0 turns it off.", low=0
    )
    optimizer: str = _setting(
        "adam", "Rule that turns gradients into steps.", choices=("adam", "muon")
    )
    adam_beta1: float = _setting(
        0.9, "Decay of the gradient's mean, Muon's momentum too.", low=0, below=1
    )
    adam_beta2: float = _setting(0.999, "Decay of the gradient's square.", low=0, below=1)
    adam_eps: float = _setting(1e-5, "Added to the root of the gradient's square.", above=0)
    weight_decay: float = _setting(0.0, "Decoupled weight decay.", low=0)
    device: str = _setting("auto", "Where the policy runs: auto, cpu, cuda or cuda:0.")
    threads: int = _setting(0, "Threads of torch; 0 tries which number is fastest.", low=0)
    precision: str = _setting(
        "float32", "Type of the policy's arithmetic.", choices=("float32", "bfloat16")
    )
    checkpoint_interval: int = _setting(
        200, "Updates between checkpoints; 0 means only at the end.", low=0
    )
    time_limit_s: float = _setting(
        0.0, "Seconds of wall time after which to stop; 0 means no limit.", low=0
    )
    stop_score: float | None = _setting(
        None, "Stop once the goal's metric reaches this; none trains on."
    )


@dataclass(frozen=True, kw_only=True)
class VecConfig:
    """How many environments run, and where."""

    backend: str = _setting("auto", "Backend by name, such as Serial; auto picks the fastest.")
    num_envs: int = _setting(1024, "Environments that run side by side.", low=1)
    num_workers: int | str = _setting(
        "auto", "Threads or processes that step them; auto means one per usable core.",
        low=1, choices=("auto",),
    )  # fmt: skip
    batch_size: int | str = _setting(
        "auto", "Environments per batch; auto means what suits the backend.",
        low=1, choices=("auto",),
    )  # fmt: skip
    restart_workers: int = _setting(
        0, "Dead or frozen worker processes that are replaced before the run ends.", low=0
    )
    timeout_s: float = _setting(
        60.0, "Seconds a step may take before a worker counts as frozen.", above=0
    )


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """The network."""

    name: str = _setting("Default", "Class in pufferlib.models, or in the environment's folder.")
    hidden_size: int = _setting(128, "Width of the hidden layers.", low=1)
    num_layers: int = _setting(1, "Hidden layers after the encoder.", low=0)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What a run keeps and shows."""

    dir: str = _setting("", "Folder of the run; empty means runs/<env>/<time>-<seed>.")
    resume: str = _setting("", "Checkpoint to continue from, or latest; empty begins anew.")
    log_interval_s: float = _setting(1.0, "Least seconds between two lines of metrics.", low=0)
    keep_checkpoints: int = _setting(3, "Newest checkpoints that are kept.", low=1)
    tensorboard: bool = _setting(True, "Write TensorBoard curves beside the metrics.")
    dashboard: str = _setting(
        "auto", "Live panel on the terminal; auto shows it on a terminal only.",
        choices=("auto", "on", "off"),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GoalConfig:
    """What counts as playing well."""

    metric: str = _setting("episode_return", "Field of the episodes that tells how well it plays.")
    score: float | None = _setting(None, "Mean of the metric at which it plays well.")
    minutes: float = _setting(5.0, "Training time within which it should.", above=0)


SECTIONS: dict[str, type] = {
    "train": TrainConfig,
    "vec": VecConfig,
    "policy": PolicyConfig,
    "run": RunConfig,
    "goal": GoalConfig,
}


@dataclass(frozen=True)
class Setting:
    """One key: what it may hold, what it holds by default and what it is for."""

    key: str
    kinds: tuple[type, ...]
    default: Any
    sentence: str
    low: float | None
    above: float | None
    high: float | None
    below: float | None
    choices: tuple[str, ...]

    @property
    def flag(self) -> str:
        """As on the command line."""
        return "--" + self.key.replace("_", "-")

    @property
    def expected(self) -> str:
        """The values it takes, in words."""
        words = []
        if int in self.kinds or float in self.kinds:
            limits = {"of at least": self.low, "above": self.above}
            limits |= {"at most": self.high, "below": self.below}
            bounds = [f"{text} {limit:g}" for text, limit in limits.items() if limit is not None]
            number = "a whole number" if int in self.kinds else "a number"
            words.append(" ".join([number, *filter(None, [" and ".join(bounds)])]))
        if bool in self.kinds:
            words.append("true or false")
        if str in self.kinds:
            words.append(" or ".join(self.choices) or "text")
        if NoneType in self.kinds:
            words.append("none")
        return " or ".join(words)

    def coerce(self, value: Any, *, source: str) -> Any:
        """`value` (typed as in TOML, or text as in a flag) in this setting's type.

        Raises: ConfigError naming the key, the value, its source and what is expected.
        """
        given = value
        if isinstance(value, str):
            if str in self.kinds and (not self.choices or value in self.choices):
                return value
            if NoneType in self.kinds and value == "none":
                return None
            value = {"true": True, "false": False}.get(value, _number(value))
        if isinstance(value, bool):
            if bool in self.kinds:
                return value
        elif isinstance(value, int | float) and math.isfinite(value) and self._within(value):
            if int in self.kinds and value == int(value):
                return int(value)
            if float in self.kinds:
                return float(value)
        elif value is None and NoneType in self.kinds:
            return None
        raise ConfigError(f"{self.key} is {given!r} (from {source}); expected {self.expected}")

    def _within(self, value: float) -> bool:
        return (
            (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.high is None or value <= self.high)
            and (self.below is None or value < self.below)
        )


@cache
def settings() -> Mapping[str, Setting]:
    """Every setting by its full key, such as "train.seed"; `env.*` belongs to the environment."""
    table = {}
    for section, cls in SECTIONS.items():
        hints = get_type_hints(cls)
        for f in fields(cls):
            hint = hints[f.name]
            key, kinds = f"{section}.{f.name}", get_args(hint) or (hint,)
            table[key] = Setting(key=key, kinds=kinds, default=f.default, **f.metadata)
    return table


@dataclass(frozen=True)
class Config:
    """All settings of a run; `env` holds the environment's own parameters, which it checks itself.

    `sources` maps each key that is not at its default to where it was set.
    """

    train: TrainConfig = TrainConfig()
    vec: VecConfig = VecConfig()
    policy: PolicyConfig = PolicyConfig()
    run: RunConfig = RunConfig()
    goal: GoalConfig = GoalConfig()
    env: Mapping[str, Any] = field(default_factory=dict)
    env_name: str = ""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def override(self, values: Mapping[str, Any] | Iterable[str], *, source: str = "") -> Config:
        """A copy with `values` laid over it: {"train.seed": 2}, or flags as in `parse_flags`.

        `source` is remembered for each key; by default it is the key's flag.
        Raises: ConfigError for a key that does not exist or a value that does not fit.
        """
        typed = isinstance(values, Mapping)
        pairs = values if isinstance(values, Mapping) else parse_flags(values)
        sections: dict[str, dict[str, Any]] = {name: {} for name in (*SECTIONS, "env")}
        sources = dict(self.sources)
        for key, value in pairs.items():
            origin = source or "--" + key.replace("_", "-")
            section, name = find(key, source=origin)
            if section == "env":
                typed_value = None if value == "none" else value
                sections[section][name] = typed_value if typed else _raw(value)
            else:
                sections[section][name] = settings()[key].coerce(value, source=origin)
            sources[key] = origin
        env = {**self.env, **sections.pop("env")}
        changed = {name: replace(getattr(self, name), **new) for name, new in sections.items()}
        return replace(self, env=env, sources=sources, **changed)

    def overlay(self, path: str | Path, *, source: str = "") -> Config:
        """A copy with the TOML file at `path` laid over it. Raises: ConfigError."""
        source = source or str(path)
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the config {path}: {error}") from error
        values, env_name = _flatten(text, source=source)
        if env_name not in ("", self.env_name):
            raise ConfigError(
                f"{path} is a config of {env_name!r}; this run is of {self.env_name!r}"
            )
        return self.override(values, source=source)

    def get(self, key: str) -> Any:
        """The value of a full key such as "train.seed"."""
        section, name = find(key, source="Config.get")
        return self.env[name] if section == "env" else getattr(getattr(self, section), name)

    def source(self, key: str) -> str:
        """Where the value of a full key was set: a file, a flag or "default"."""
        return self.sources.get(key, "default")

    def to_toml(self) -> str:
        """Every setting as TOML that `from_toml` reads back to an equal Config.

        What is not at its default has its source in a comment.
        """
        lines = [f"env_name = {_toml(self.env_name)}"]
        for section in (*SECTIONS, "env"):
            lines += ["", f"[{section}]"]
            for name, value in _items(getattr(self, section)):
                source = self.sources.get(f"{section}.{name}")
                comment = f"  # {_toml(source)[1:-1]}" if source else ""
                lines.append(f"{_toml_key(name)} = {_toml(value)}{comment}")
        return "\n".join(lines) + "\n"

    @classmethod
    def from_toml(cls, text: str, *, source: str = "config.toml") -> Config:
        """The Config that `to_toml` wrote. Raises: ConfigError."""
        values, env_name = _flatten(text, source=source)
        return cls(env_name=env_name).override(values, source=source)


def load_config(
    env_name: str,
    *,
    env_config_path: str | Path | None = None,
    files: Iterable[str | Path] = (),
    overrides: Mapping[str, Any] | Iterable[str] = (),
) -> Config:
    """The settings of a run: defaults, the environment's file, the user's files, then `overrides`.

    `overrides` is a mapping {"train.seed": 2} or a list of flags. Raises: ConfigError.
    """
    config = Config(env_name=env_name)
    if env_config_path is not None:
        path = Path(env_config_path)
        config = config.overlay(path, source=f"{path.parent.name}/{path.name}")
    for file in files:
        config = config.overlay(file)
    return config.override(overrides)


def validate(config: Config, num_agents: int) -> None:
    """Refuse sizes that do not divide, before anything starts.

    `num_agents` is the number of rows of all environments together. A minibatch is a whole
    number of segments, and an update a whole number of minibatches: no row is ever dropped.
    Raises: ConfigError with both numbers and the nearest valid ones.
    """
    horizon, size = config.train.horizon, config.train.minibatch_size
    batch = num_agents * horizon
    valid = [horizon * n for n in range(1, num_agents + 1) if num_agents % n == 0]
    if size in valid:
        return
    nearest = [max((v for v in valid if v < size), default=None)]
    nearest.append(min((v for v in valid if v > size), default=None))
    if size > batch:
        problem = "is more than"
    elif size % horizon:
        problem = f"is not a multiple of the horizon {horizon}, as it must be to divide"
    else:
        problem = "does not divide"
    raise ConfigError(
        f"train.minibatch_size {size} (from {config.source('train.minibatch_size')}) {problem} the "
        f"{batch} rows of an update ({num_agents} agents x horizon {horizon}); "
        "the nearest that fit: " + " and ".join(str(v) for v in nearest if v is not None)
    )


def parse_flags(flags: Iterable[str]) -> dict[str, Any]:
    """Flags as full keys and text; dashes and underscores are the same.

    `--train.seed 3`, `--train.seed=3`, `--train.anneal-lr` (true), `--no-train.anneal-lr` (false).
    Raises: ConfigError for anything else.
    """
    values: dict[str, Any] = {}
    rest = list(flags)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--") or flag == "--":
            raise ConfigError(f"{flag!r} is not a flag; settings are given as --section.key value")
        name, equals, text = flag[2:].partition("=")
        key = name.replace("-", "_")
        value: str | bool = text
        if key.startswith("no_") and not equals:
            key, value = key.removeprefix("no_"), False
        elif not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else True
        section, _ = find(key, source=flag)
        if isinstance(value, bool) and section != "env" and bool not in settings()[key].kinds:
            setting = settings()[key]
            raise ConfigError(
                f"{flag} needs a value: {setting.expected}, as in {setting.flag} VALUE"
            )
        values[key] = value
    return values


def find(key: str, *, source: str) -> tuple[str, str]:
    """Section and name of a full key. Raises: ConfigError naming the nearest key that exists."""
    section, _, name = key.partition(".")
    if key in settings() or (section == "env" and name and "." not in name):
        return section, name
    bare = {known.partition(".")[2]: known for known in reversed(list(settings()))}
    alike = [bare[near] for near in difflib.get_close_matches(key, bare, n=1, cutoff=0.6)]
    alike += difflib.get_close_matches(key, settings(), n=1, cutoff=0.6)
    if section in SECTIONS and not alike:
        alike = difflib.get_close_matches(
            key, [k for k in settings() if k.startswith(section)], 1, 0
        )
    if alike:
        hint = f"did you mean {settings()[alike[0]].flag if source[:2] == '--' else alike[0]}?"
    else:
        hint = f"sections are {', '.join((*SECTIONS, 'env'))}"
    raise ConfigError(f"{key} (from {source}) is not a setting; {hint}")


def describe(config: Config | None = None) -> str:
    """Help: every flag with its sentence, what it takes and its value in `config` or by default."""
    config = config or Config()
    lines: list[str] = []
    for section, cls in SECTIONS.items():
        lines += ["", f"[{section}] {cls.__doc__}"]
        for key, setting in settings().items():
            if key.startswith(section + "."):
                value = "none" if config.get(key) is None else config.get(key)
                shown = str(value).lower() if isinstance(value, bool) else f"{value}" or "''"
                lines.append(f"  {setting.flag:<30} {setting.sentence}")
                lines.append(f"  {'':<30} {setting.expected}; default {shown}")
    lines += ["", "[env] The environment's own parameters, checked by the environment."]
    return "\n".join(lines[1:])


def _flatten(text: str, *, source: str) -> tuple[dict[str, Any], str]:
    """TOML text as full keys and values, and its `env_name` ("" without one).

    The table [package] belongs to the registry, [doctor] to `puffertank doctor`.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from error
    env_name = tables.pop("env_name", "")
    for table in ("package", "doctor"):
        tables.pop(table, None)
    values = {}
    for section, table in tables.items():
        if not isinstance(table, dict):
            find(section, source=source)
        if section != "env" and section not in SECTIONS:
            known = difflib.get_close_matches(section, (*SECTIONS, "env"), n=1, cutoff=0)
            raise ConfigError(
                f"[{section}] (in {source}) is not a section; did you mean [{known[0]}]?"
            )
        values.update({f"{section}.{name}": value for name, value in table.items()})
    return values, env_name


def _items(section: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(section, Mapping):
        return iter(section.items())
    return ((f.name, getattr(section, f.name)) for f in fields(section))


def _number(text: str) -> int | float | str:
    """`text` as a number; text that is none comes back as it is."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _raw(value: Any) -> Any:
    """A value of the environment's own: text from a flag becomes the scalar or list it spells."""
    if not isinstance(value, str):
        return value
    if value in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[value]
    if value[:1] in ("[", '"'):
        try:
            return tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            return value
    number = _number(value)
    return number if isinstance(number, int) or number not in (math.inf, -math.inf) else value


def _toml(value: Any) -> str:
    """`value` as TOML; None is spelled "none"."""
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml_key(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    raise ConfigError(f"{value!r} cannot be kept in a config; expected a scalar, a list or a table")


def _toml_key(key: str) -> str:
    return key if key.isascii() and key.replace("_", "a").isalnum() else _toml(key)
