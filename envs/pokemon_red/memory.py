"""Where Pokémon Red (US) keeps what its player would call progress, and how to read it."""

from __future__ import annotations

from dataclasses import dataclass

from pufferlib.envs.gameboy.console import Memory

# Addresses in the RAM of the release whose hash is SHA1; other releases differ.
SHA1 = "ea9bcae617fdf159b045185467ae58b2e4a48b9a"
IN_BATTLE = 0xD057  # 0 no, 1 with a wild Pokémon, 2 with a trainer.
PARTY_COUNT = 0xD163
PARTY, MEMBER_BYTES = 0xD16B, 44  # Six members; below are offsets within one.
HP, LEVEL, MAX_HP = 1, 33, 34  # Two bytes, one and two.
MONEY, MONEY_BYTES = 0xD347, 3  # Two decimal digits a byte.
BADGES = 0xD356  # A bit each.
MAP, Y, X = 0xD35E, 0xD361, 0xD362
EVENTS, EVENTS_END = 0xD747, 0xD887  # A bit for each thing that has happened in the story.
PARTY_SIZE = 6


@dataclass(frozen=True)
class Progress:
    """What stands in memory at one time; `cell` is (map, y, x), `health` between 0 and 1."""

    cell: tuple[int, int, int]
    badges: int
    events: int
    money: int
    in_battle: int
    levels: tuple[int, ...]
    health: tuple[float, ...]

    @property
    def badge_count(self) -> int:
        return self.badges.bit_count()


def read_progress(memory: Memory) -> Progress:
    """The progress of the game that is running."""
    members = [PARTY + i * MEMBER_BYTES for i in range(min(memory[PARTY_COUNT], PARTY_SIZE))]
    full = [memory.word(member + MAX_HP) for member in members]
    return Progress(
        cell=(memory[MAP], memory[Y], memory[X]),
        badges=memory[BADGES],
        events=memory.bits(EVENTS, EVENTS_END),
        money=memory.bcd(MONEY, MONEY_BYTES),
        in_battle=memory[IN_BATTLE],
        levels=tuple(memory[member + LEVEL] for member in members),
        health=tuple(
            memory.word(member + HP) / most if most else 0.0
            for member, most in zip(members, full, strict=True)
        ),
    )
