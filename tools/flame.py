"""Stacks as a flame graph: one SVG without scripts, a title per frame."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from html import escape

__all__ = ["Stacks", "flame_graph"]

WIDTH = 1200
ROW = 17
NARROWEST = 0.4
"""Pixels: narrower frames are left out."""

type Stacks = Counter[tuple[str, ...]]
"""How often each stack was seen; the outermost frame first."""


@dataclass
class _Node:
    count: int = 0
    callees: dict[str, _Node] = field(default_factory=dict)


def _tree(stacks: Stacks) -> tuple[_Node, int]:
    root, deepest = _Node(), 0
    for stack, count in stacks.items():
        root.count += count
        deepest = max(deepest, len(stack))
        node = root
        for frame in stack:
            node = node.callees.setdefault(frame, _Node())
            node.count += count
    return root, deepest


def _colour(frame: str) -> str:
    """Blue for native code, warm for Python; the same for the same function in every graph."""
    shade = hashlib.sha256(frame.encode()).digest()[0]
    hue = 205 if frame.startswith("[") else 20 + shade // 8
    return f"hsl({hue},{55 + shade % 30}%,{62 + shade % 18}%)"


def _boxes(node: _Node, left: float, top: float, scale: float, total: int) -> list[str]:
    boxes: list[str] = []
    for frame, callee in sorted(node.callees.items()):
        width = callee.count * scale
        if width >= NARROWEST:
            title = escape(f"{frame}: {callee.count} samples, {100 * callee.count / total:.1f} %")
            label = escape(frame[: int(width / 6.4)]) if width > 30 else ""
            boxes.append(
                f'<g><title>{title}</title><rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{ROW - 1}" '
                f'fill="{_colour(frame)}"/><text x="{left + 2:.1f}" y="{top + 12}">{label}</text></g>'
            )
            boxes += _boxes(callee, left, top - ROW, scale, total)
        left += width
    return boxes


def flame_graph(title: str, stacks: Stacks) -> str:
    """The SVG; callers below, callees above. `ValueError` without a sample."""
    root, deepest = _tree(stacks)
    if not root.count:
        raise ValueError("there is no sample to draw")
    height = (deepest + 3) * ROW
    boxes = _boxes(root, 0.0, height - 2 * ROW, WIDTH / root.count, root.count)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="monospace" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/><text x="4" y="13">{escape(title)}, {root.count} samples</text>'
    )
    return "\n".join([head, *boxes, "</svg>\n"])
