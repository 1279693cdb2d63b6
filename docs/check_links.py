# SPDX-License-Identifier: Apache-2.0
"""Check the links from our pages to other sites: `make links`, or `python docs/check_links.py [PAGE...]`.

It needs the network, so it is no part of the tests or of the build. A link is broken if its host does not
answer, or answers that the page is not there. A host may refuse scripts: such links are listed for a person
to look at. What stands in code is an example, and is no link.
"""

import argparse
import re
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.client import HTTPException
from itertools import repeat
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parents[1]
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"https?://(?:[^\s<>\"'\]()]|\([^\s()]*\))+")
REFUSES_SCRIPTS = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS}
HEADERS = {"User-Agent": "Mozilla/5.0 (a check of links in documentation)"}
AT_ONCE = 8


def links_of(text: str) -> list[str]:
    """Return the addresses on a page, without the places within their pages."""
    found = (link.rstrip(".,;:").partition("#")[0] for link in LINK.findall(CODE.sub("", text)))
    return list(dict.fromkeys(found))


def problem(link: str, timeout: float) -> tuple[bool, str] | None:
    """Ask for an address; return None if it is there.

    Args:
        link: The address.
        timeout: How many seconds to wait for an answer.

    Returns:
        Whether the link is broken, and not only refused to a script; and what was answered.
    """
    for method in ("HEAD", "GET"):  # some hosts answer the first one wrongly
        try:
            with urlopen(Request(link, headers=HEADERS, method=method), timeout=timeout):
                return None
        except HTTPError as error:
            answer = error.code not in REFUSES_SCRIPTS, f"{error.code} {error.reason}"
        except (OSError, HTTPException, ValueError) as error:
            answer = True, str(error) or type(error).__name__
    return answer


def pages() -> list[Path]:
    """Return the pages of the project."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def check(paths: Iterable[Path], *, timeout: float) -> int:
    """Print the links that are broken or were refused; return how many are broken.

    Args:
        paths: The pages.
        timeout: How many seconds to wait for each answer.
    """
    places: dict[str, list[str]] = {}
    for path in paths:
        for link in links_of(path.read_text(encoding="utf-8")):
            places.setdefault(link, []).append(path.name)
    broken = 0
    with ThreadPoolExecutor(AT_ONCE) as workers:
        answers = workers.map(problem, places, repeat(timeout))
        for link, answer in zip(places, answers, strict=True):
            if answer is not None:
                broken += answer[0]
                word = "broken" if answer[0] else "refused to a script"
                print(f"{word}: {link} ({answer[1]}), on {', '.join(places[link])}")
    print(f"{len(places)} links to other sites, {broken} broken")
    return broken


def main() -> int:
    """Check what the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, help="pages in Markdown; all, if none is named")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds to wait for each answer")
    told = parser.parse_args()
    return 1 if check(told.pages or pages(), timeout=told.timeout) else 0


if __name__ == "__main__":
    sys.exit(main())
