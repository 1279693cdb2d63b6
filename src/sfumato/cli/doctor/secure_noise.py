# SPDX-License-Identifier: Apache-2.0
"""Whether noise is secure here: where its randomness comes from, which generator is the default, OpenDP.

The statistical check is coarse. It finds noise that is missing, constant or of a quite different size, and
nothing subtler: a bad generator can pass any such check, so the state of the generator is asked for as well.

Guarantee  If everything is as it should be, the statistical check fails with probability `FALSE_ALARM` at
           most: each part is a sum of independent fair coins, and Hoeffding's inequality bounds it.
Source     Hoeffding 1963: P(|S - n/2| >= t) <= 2 exp(-2 t^2 / n).
"""

import math
import os
from collections.abc import Iterator

from sfumato.cli.doctor.findings import Finding, State
from sfumato.mechanisms.random import Generator, resolve, words

__all__ = ["FALSE_ALARM", "check", "farthest", "unfair"]

AREA = "noise"
FALSE_ALARM = 1e-9  # of all coins together
_COINS = 4  # kinds of coins below
_WORDS = 4096  # of 64 bits
_DRAWS = 512  # of OpenDP's Laplace noise, of scale 1

_REPORT = "Publish nothing from this machine, and report this."


def check() -> Iterator[Finding]:
    """Yield what is found about entropy, the default generator, OpenDP and what they draw."""
    yield _entropy()
    generator = resolve(None)
    yield _default(generator)
    coins = _coins_of_words(generator)
    try:
        coins |= _coins_of_opendp()
    except Exception as error:  # of any kind: a library that does not load
        yield _finding(
            "OpenDP",
            State.BROKEN,
            f"it does not load or draw ({type(error).__name__}: {error})",
            "Run: pip install --force-reinstall opendp",
        )
    else:
        yield _finding("OpenDP", State.OK, "it loads, and draws Laplace noise")
    yield _statistics(coins)


def unfair(coins: dict[str, tuple[int, int]]) -> list[str]:
    """Return the coins that fell on one side more often than chance allows.

    Args:
        coins: Heads and throws, by name.

    Returns:
        Their names.

    >>> unfair({"a": (500, 1000), "b": (1000, 1000)})
    ['b']
    """
    return [name for name, (heads, throws) in coins.items() if abs(heads - throws / 2) > farthest(throws)]


def farthest(throws: int) -> float:
    """Return how far the heads of fair coins may be from half of the throws."""
    return math.sqrt(throws * math.log(2 * _COINS / FALSE_ALARM) / 2)


def _finding(name: str, state: State, found: str, advice: str | None = None) -> Finding:
    return Finding(area=AREA, name=name, state=state, found=found, advice=advice)


def _entropy() -> Finding:
    """Ask the operating system for randomness, without waiting for it where that can be said."""
    try:
        if hasattr(os, "getrandom"):
            os.getrandom(32, os.GRND_NONBLOCK)
        drawn = {os.urandom(32), os.urandom(32)}
    except OSError as error:
        advice = "Start the machine's service for randomness, or wait until it has started."
        return _finding("entropy", State.BROKEN, f"the system gives none ({error.strerror})", advice)
    if len(drawn) < 2:
        return _finding("entropy", State.BROKEN, "the system gave the same bytes twice", _REPORT)
    return _finding("entropy", State.OK, "the operating system gives randomness")


def _default(generator: Generator) -> Finding:
    kind = type(generator).__name__
    if generator.secure is True and not generator.seeded:
        return _finding("default generator", State.OK, f"{kind}: AES-256, with a secret key of this process")
    found = f"{kind} is the default, which is not secure"
    return _finding("default generator", State.BROKEN, found, _REPORT)


def _coins_of_words(generator: Generator) -> dict[str, tuple[int, int]]:
    """Return all bits as coins, and whether each bit differs from the same one of the next word."""
    drawn = words(_WORDS, generator)
    ones = int.from_bytes(drawn.tobytes(), "big").bit_count()
    # In pairs that do not overlap, so that these coins are independent, too.
    changes = int.from_bytes((drawn[::2] ^ drawn[1::2]).tobytes(), "big").bit_count()
    return {"bits": (ones, 64 * _WORDS), "changes of bits": (changes, 32 * _WORDS)}


def _coins_of_opendp() -> dict[str, tuple[int, int]]:
    """Return the signs of Laplace noise, and whether its size is above its median, ln 2."""
    from sfumato.mechanisms.opendp_noise import laplace

    add = laplace("f64", 1.0)
    drawn = [float(add(0.0)) for _ in range(_DRAWS)]
    return {
        "signs of Laplace noise": (sum(value > 0 for value in drawn), _DRAWS),
        "sizes of Laplace noise": (sum(abs(value) > math.log(2) for value in drawn), _DRAWS),
    }


def _statistics(coins: dict[str, tuple[int, int]]) -> Finding:
    wrong = unfair(coins)
    chance = f"a correct install fails this check about once in {1 / FALSE_ALARM:,.0f} runs, or less"
    if wrong:
        found = f"{', '.join(wrong)}: not as they must be; {chance}"
        return _finding("statistics", State.BROKEN, found, f"Run it again. If it fails again: {_REPORT}")
    return _finding("statistics", State.OK, f"{len(coins)} coarse checks passed; {chance}")
