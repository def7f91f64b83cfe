"""A game of our own for the Game Boy, with the few lines of assembler that turn it into a ROM.

You are the black square on a board of 16 x 16 cells and catch the grey one, which appears with
your first move and, when it is caught, somewhere else. Leaving the board on the right leads to the
next board, on the left back to the one before; walking into a wall costs a hit point, button A
restores them.

What the game counts lies where Pokémon Red keeps it (position, map, level, hit points, badges,
events, money), so that whatever reads that game's memory can be tried on a ROM that is free.
"""

from __future__ import annotations

import re

BOARD = 16
MAX_HP = 20
CATCHES, FRAMES, RANDOM, HELD = 0xC000, 0xC001, 0xC002, 0xC003
TARGET_Y, TARGET_X = 0xC004, 0xC005

SYMBOLS = {
    # Registers of the machine.
    "P1": 0x00, "LCDC": 0x40, "LY": 0x44, "BGP": 0x47,
    # The game's own variables, and those that lie as in Pokémon Red.
    "CATCHES": CATCHES, "FRAMES": FRAMES, "RANDOM": RANDOM, "HELD": HELD,
    "TARGET_Y": TARGET_Y, "TARGET_X": TARGET_X,
    "MAP": 0xD35E, "Y": 0xD361, "X": 0xD362, "PARTY": 0xD163, "LEVEL": 0xD18C, "HP": 0xD16D,
    "FULL_HP": 0xD18E, "BADGES": 0xD356, "EVENTS": 0xD747, "MONEY": 0xD349,
    "MAX_HP": MAX_HP, "BOARD": BOARD, "LAST": BOARD - 1,
    "NOWHERE": 0xFF,
}  # fmt: skip

SOURCE = """
        di
        ld sp, $FFFE
@off:   ldh a, [LY]             ; The screen may be switched off only while it is not drawn.
        cp 144
        jr c, @off
        xor a
        ldh [LCDC], a

        ld hl, $8000            ; Tiles: 0 floor, 1 player, 2 target, 3 wall.
        ld de, $0000
        call @tile
        ld de, $FFFF
        call @tile
        ld de, $FF00
        call @tile
        ld de, $00FF
        call @tile

        ld hl, $9800            ; The map that is shown, all floor.
        ld bc, $0400
        call @clear
        ld hl, $C000            ; Variables.
        ld bc, $1F00
        call @clear

        ld hl, $9A00            ; A wall below the board and one beside it.
        ld b, 17
        ld a, 3
@below: ld [hl+], a
        dec b
        jr nz, @below
        ld hl, $9810
        ld de, 32
        ld b, 16
@side:  ld [hl], a
        add hl, de
        dec b
        jr nz, @side

        ld a, 1
        ld [PARTY], a
        ld a, 5
        ld [LEVEL], a
        ld a, MAX_HP
        ld [HP], a
        ld [FULL_HP], a
        ld a, 8
        ld [Y], a
        ld [X], a
        ld a, NOWHERE
        ld [TARGET_Y], a
        ld a, $E4
        ldh [BGP], a
        ld a, $91
        ldh [LCDC], a

@frame: ldh a, [LY]             ; Once a frame, when the screen has been drawn.
        cp 144
        jr nz, @frame
        ld hl, FRAMES
        inc [hl]
        ld hl, RANDOM           ; RANDOM = 5 * RANDOM + 17
        ld a, [hl]
        add a, a
        add a, a
        add a, [hl]
        add a, 17
        ld [hl], a

        xor a
        call @player
        ld a, $20               ; The cross: what is pressed now and was not a frame ago.
        ldh [P1], a
        ldh a, [P1]
        ldh a, [P1]
        cpl
        and 15
        ld b, a
        ld a, [HELD]
        cpl
        and b
        ld c, a
        ld a, b
        ld [HELD], a
        bit 0, c
        call nz, @right
        bit 1, c
        call nz, @left
        bit 2, c
        call nz, @up
        bit 3, c
        call nz, @down
        ld a, $10               ; The buttons.
        ldh [P1], a
        ldh a, [P1]
        ldh a, [P1]
        cpl
        and 1
        call nz, @heal

        ld a, [TARGET_Y]        ; Where the target appears depends on when the player first moves.
        cp NOWHERE
        jr nz, @placed
        ld a, [HELD]
        or a
        jr z, @alone
        call @place
@placed: ld a, [TARGET_Y]
        ld b, a
        ld a, [Y]
        cp b
        jr nz, @draw
        ld a, [TARGET_X]
        ld b, a
        ld a, [X]
        cp b
        call z, @catch
@draw:  ld a, [TARGET_Y]
        ld d, a
        ld a, [TARGET_X]
        ld e, a
        ld a, 2
        call @plot
@alone: ld a, 1
        call @player
@drawn: ldh a, [LY]
        cp 144
        jr z, @drawn
        jp @frame

@right: ld a, [X]
        inc a
        cp BOARD
        jr nz, @walked
        ld hl, MAP
        inc [hl]
        xor a
@walked: ld [X], a
        ret
@left:  ld a, [X]
        or a
        jr nz, @west
        ld hl, MAP
        ld a, [hl]
        or a
        jr z, @bump
        dec [hl]
        ld a, BOARD
@west:  dec a
        ld [X], a
        ret
@up:    ld a, [Y]
        or a
        jr z, @bump
        dec a
        ld [Y], a
        ret
@down:  ld a, [Y]
        cp LAST
        jr z, @bump
        inc a
        ld [Y], a
        ret
@bump:  ld hl, HP
        ld a, [hl]
        or a
        ret z
        dec [hl]
        ret
@heal:  ld a, MAX_HP
        ld [HP], a
        ret

@catch: ld hl, CATCHES          ; Each is a level, an event and 5 of money; every fourth a badge.
        inc [hl]
        ld hl, LEVEL
        inc [hl]
        ld hl, EVENTS
        scf
        rl [hl]
        ld hl, MONEY
        ld a, [hl]
        add a, 5
        daa
        ld [hl], a
        ld a, [CATCHES]
        and 3
        jr nz, @place
        ld hl, BADGES
        scf
        rl [hl]
@place: ld a, [RANDOM]
        and 15
        ld [TARGET_X], a
        ld a, [RANDOM]
        swap a
        and 15
        ld [TARGET_Y], a
        ret

@player: ld l, a                ; Draw tile A where the player is.
        ld a, [Y]
        ld d, a
        ld a, [X]
        ld e, a
        ld a, l
@plot:  ld h, 0                 ; Draw tile A in row D, column E.
        ld l, d
        add hl, hl
        add hl, hl
        add hl, hl
        add hl, hl
        add hl, hl
        ld d, $98
        add hl, de
        ld [hl], a
        ret

@tile:  ld b, 8                 ; Eight lines of a tile, D and E being its two bit planes.
@line:  ld a, d
        ld [hl+], a
        ld a, e
        ld [hl+], a
        dec b
        jr nz, @line
        ret

@clear: xor a                   ; BC bytes from HL on.
        ld [hl+], a
        dec bc
        ld a, b
        or c
        jr nz, @clear
        ret
"""

# Instructions as they are written, with # for an operand of that many bytes; 0 is a distance.
OPCODES: dict[str, tuple[bytes, int | None]] = {
    name: (bytes.fromhex(code), size)
    for size, table in {
        None: """
            di F3 | xor a AF | cpl 2F | daa 27 | scf 37 | ret C9 | ret z C8 | or a B7 | or c B1
            and b A0 | cp b B8 | inc a 3C | dec a 3D | dec b 05 | dec bc 0B | inc [hl] 34
            dec [hl] 35 | add a, a 87 | add a, [hl] 86 | add hl, hl 29 | add hl, de 19
            ld a, b 78 | ld a, d 7A | ld a, e 7B | ld a, l 7D | ld a, [hl] 7E | ld b, a 47
            ld c, a 4F | ld d, a 57 | ld e, a 5F | ld l, a 6F | ld l, d 6A | ld [hl], a 77
            ld [hl+], a 22 | bit 0, c CB41 | bit 1, c CB49 | bit 2, c CB51 | bit 3, c CB59
            rl [hl] CB16 | swap a CB37""",
        0: "jr # 18 | jr z, # 28 | jr nz, # 20 | jr c, # 38",
        1: """
            ld a, # 3E | ld b, # 06 | ld d, # 16 | ld h, # 26 | ldh a, [#] F0 | ldh [#], a E0
            cp # FE | and # E6 | add a, # C6""",
        2: """
            ld a, [#] FA | ld [#], a EA | ld bc, # 01 | ld de, # 11 | ld hl, # 21 | ld sp, # 31
            call # CD | jp # C3 | call z, # CC | call nz, # C4""",
    }.items()
    for name, code in re.findall(r"([^\s|][^|\n]*?) ([0-9A-F]{2,4})(?= *(?:\||\n|$))", table)
}


def assemble(source: str, symbols: dict[str, int], origin: int) -> bytes:
    """The machine code of `source`, to be placed at the address `origin`.

    A line is `@label: instruction ; comment`; operands are $hex, decimal, a symbol or a @label.
    """
    labels: dict[str, int] = {}
    lines: list[tuple[int, bytes, int | None, str]] = []
    address = origin
    for line in source.splitlines():
        label, text = re.fullmatch(r"(?:(@\w+):)?\s*(.*?)\s*(?:;.*)?", line).groups()
        if label:
            labels[label] = address
        if not text:
            continue
        found = re.search(r"\$[0-9A-F]+|@\w+|\b(?:\d+|[A-Z]\w*)\b", text)
        operand = "" if text in OPCODES or found is None else found[0]
        code, size = OPCODES[text.replace(operand, "#", 1) if operand else text]
        lines.append((address, code, size, operand))
        address += len(code) + (0 if size is None else max(size, 1))
    known = symbols | labels
    program = b""
    for address, code, size, operand in lines:
        program += code
        if size is None:
            continue
        value = int(operand[1:], 16) if operand[0] == "$" else known.get(operand)
        value = int(operand) if value is None else value
        if size == 0:
            program += (value - address - 2).to_bytes(1, "little", signed=True)
        else:
            program += value.to_bytes(size, "little")
    return program


def build(title: str = "CATCH") -> bytes:
    """The game as a ROM of 32 KiB on a cartridge as Pokémon Red's: MBC3, RAM and a battery."""
    entry = 0x150
    program = assemble(SOURCE, SYMBOLS, entry)
    rom = bytearray(0x8000)
    rom[0x100:0x104] = b"\x00\xc3" + entry.to_bytes(2, "little")
    rom[0x134 : 0x134 + len(title)] = title.encode("ascii")
    rom[0x147:0x14A] = bytes([0x13, 0x00, 0x03])
    rom[0x14D] = header_checksum(rom)
    rom[entry : entry + len(program)] = program
    rom[0x14E:0x150] = (sum(rom) & 0xFFFF).to_bytes(2, "big")
    return bytes(rom)


def header_checksum(rom: bytes) -> int:
    """What byte 0x14D of a ROM must be for the machine to start it."""
    return -sum(rom[0x134:0x14D]) - (0x14D - 0x134) & 0xFF
