"""What the documents say is so: their code runs, their commands exist, their links lead somewhere.

A fenced block is one of
- ```python          run, the blocks of one document in order and in one process;
- ```c               lines that stand in envs/squared/squared.h;
- ```c name/name.h   (or toml, python) a file, written to the folder that the blocks run in;
- ```sh              run line by line after the Python blocks; `sh slow` among the slow tests;
- ```console         commands for a reader, of which each verb must exist;
- ```text            anything else.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from pufferlib import cli, config

ROOT = Path(__file__).parents[2]
DOCUMENTS = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/*.md"))]
FENCE = re.compile(r"^```(\w*)[ \t]*(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {"python", "c", "toml", "sh", "console", "text"}


@dataclass(frozen=True)
class Block:
    language: str
    note: str
    text: str


def blocks(document: str) -> list[Block]:
    return [Block(*found) for found in FENCE.findall((ROOT / document).read_text())]


def write_files(document: str, folder: Path) -> None:
    for block in blocks(document):
        if "/" in block.note or "." in block.note:
            path = folder / block.note
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)


def run(command: list, folder: Path) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def shell(document: str, folder: Path, *, slow: bool) -> None:
    script = [b.text for b in blocks(document) if b.language == "sh" and (b.note == "slow") == slow]
    if script:
        run(["bash", "-euo", "pipefail", "-c", "\n".join(script)], folder)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_has_a_known_language(document):
    text = (ROOT / document).read_text()
    assert len(FENCE.findall(text)) * 2 == len(re.findall(r"^```", text, re.MULTILINE))
    assert {block.language for block in blocks(document)} <= LANGUAGES


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_code_runs(document, tmp_path):
    write_files(document, tmp_path)
    python = [b.text for b in blocks(document) if b.language == "python" and not b.note]
    if python:
        (tmp_path / "document.py").write_text("\n".join(python))
        run([sys.executable, "document.py"], tmp_path)
    shell(document, tmp_path, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "document", [d for d in DOCUMENTS if "```sh slow" in (ROOT / d).read_text()]
)
def test_the_long_commands_run(document, tmp_path):
    write_files(document, tmp_path)
    shell(document, tmp_path, slow=True)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_quoted_line_of_c_stands_in_squared(document):
    lines = set((ROOT / "envs/squared/squared.h").read_text().splitlines())
    quoted = [b.text for b in blocks(document) if b.language == "c" and not b.note]
    assert [line for text in quoted for line in text.splitlines() if line not in lines] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_is_understood(document):
    verbs = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = "\n".join(b.text for b in blocks(document) if b.language in ("sh", "console"))
    for line in commands.splitlines():
        program, *words = shlex.split(line, comments=True) or [""]
        if program == "make":
            assert words[0] in verbs, f"{line}: there is no such verb"
            assignments = dict(word.split("=", 1) for word in words[1:])
            words = [
                words[0],
                assignments.get("ENV", "breakout"),
                *assignments.get("ARGS", "").split(),
            ]
            program = "puffer" if words[0] in ("train", "eval", "play") else ""
        if program == "puffer":
            own, flags = cli.split_flags(words)
            cli.make_parser().parse_args(own)
            config.parse_flags(flags)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_to_a_file(document):
    text = (ROOT / document).read_text()
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", text) + re.findall(r'src="([^"]+)"', text)
    here = (ROOT / document).parent
    assert [target for target in targets if not (here / target).exists()] == []
