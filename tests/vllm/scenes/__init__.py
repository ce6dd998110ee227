"""What is played with a prefill and a decode engine of any two kinds, in the order in which it is played."""

from dataclasses import dataclass
from typing import Callable


@dataclass
class Scene:
    name: str
    title: str
    about: str  # "both", or the side whose kind alone decides: played once for each kind of that side
    play: Callable


SCENES: list[Scene] = []


def scene(title, about="both"):
    def add(play):
        SCENES.append(Scene(play.__name__, title, about, play))
        return play

    return add


from . import tokens, waiting, failures, connections, requests, restart, params, hostile, turns, shapes, attach  # noqa: E402, F401
