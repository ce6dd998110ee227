"""What a context has to say goes to vLLM's log, with its level."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger

if TYPE_CHECKING:
    import kvlease

logger = init_logger(__name__)

LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}


def hand_over(ctx: kvlease.Context) -> None:
    for line in ctx.log():
        logger.log(LEVELS.get(line["level"], logging.WARNING), "kvlease %s", text(line))


def text(line: dict[str, Any]) -> str:
    """lease_expired: engine d-0, request r: it expired ...; to do: ..."""
    about = ", ".join(f"{name} {line[name]}" for name in ("engine", "request") if line.get(name))
    out = f"{line['kind']}: {about}{': ' if about else ''}{line['what']}"
    if line["remedy"] != "none":
        out += f"; to do: {line['remedy']}"
    if n := line.get("left_out", 0):
        out += f" ({n} more were left out)"
    return out
