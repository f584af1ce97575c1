"""Records generations until it is killed: `python tests/killed_recorder.py` reads paths, one a line, and for each
begins a process that says on standard output its number, then how many bytes its client has dealt with, again and
again. When it is dead, or done, `dead` follows. It is a program of its own so that forking it copies no threads.
"""

import os
import sys
import time
from pathlib import Path

import anyio
from scripted import VOCABULARY, Target, make_engine, oracle

from grimboost.messages import Chunk

TEXT = b"".join(b" the quick fox jumps over %d lazy dogs" % number for number in range(30))
PACE = 0.0005
"""Seconds of a pass, so that most of the time something is under way."""
PROMPT = (ord("A"), ord(">"), ord(">"))


def say(text: str) -> None:
    """In one piece, before the next step."""
    os.write(1, text.encode() + b"\n")


async def generate(path: Path) -> None:
    """One generation whose client reports what it has."""
    target = Target((TEXT,))
    target.on_step = lambda _: time.sleep(PACE)
    async with make_engine(target, oracle((TEXT,), broken_at=11, longest=20)) as engine:
        say("begun")
        async with engine.generate(PROMPT, max_new_tokens=len(VOCABULARY) * 9, record=path) as generation:
            async for event in generation:
                if isinstance(event, Chunk):
                    say(str(event.offset + len(event.data)))


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if not child:
            say(str(os.getpid()))
            anyio.run(generate, Path(line.strip()))
            os._exit(0)
        os.waitpid(child, 0)
        say("dead")


if __name__ == "__main__":
    main()
