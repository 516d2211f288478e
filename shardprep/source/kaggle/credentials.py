"""The Kaggle credentials of this machine, in the order of the client's search.

The client reads the credentials itself. This module finds them to name their file or variable in
errors, and to mask their values in messages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Credential:
    """The secrets in one file or environment variable; `source` is its name."""

    source: str
    secrets: tuple[str, ...] = field(repr=False)


def credentials() -> list[Credential]:
    """Return the credentials in the client's order. The client uses only the first."""
    return [*_tokens(), *_key_pairs(), *_logins()]


def _tokens() -> Iterator[Credential]:
    env = os.environ
    if env.get("KAGGLE_KERNEL_RUN_TYPE") and env.get("KAGGLE_DATA_PROXY_URL"):
        yield from _token_file(env.get("KAGGLE_API_V1_TOKEN", ""), "KAGGLE_API_V1_TOKEN")
    if token := env.get("KAGGLE_API_TOKEN"):
        if os.path.exists(token):  # noqa: PTH110 - Path.exists raises for long tokens
            yield from _token_file(token, "KAGGLE_API_TOKEN")
        else:
            yield Credential("KAGGLE_API_TOKEN", (token,))
    for name in ("access_token", "access_token.txt"):
        yield from _token_file(str(Path.home() / ".kaggle" / name), f"~/.kaggle/{name}")


def _token_file(path: str, source: str) -> Iterator[Credential]:
    token = _text(Path(path)).strip() if path else ""
    if token:
        yield Credential(source, (token,))


def _key_pairs() -> Iterator[Credential]:
    """Yield pairs of user name and key. Each may be in a variable, which overrides the file."""
    user, key = os.environ.get("KAGGLE_USERNAME"), os.environ.get("KAGGLE_KEY")
    if user and key:
        yield Credential("KAGGLE_USERNAME and KAGGLE_KEY", (key,))
    path = config_folder() / "kaggle.json"
    content = _json(path)
    if (user or content.get("username")) and content.get("key"):
        yield Credential(_short(path), (str(content["key"]),))
    elif key and not user and content.get("username"):
        yield Credential(f"KAGGLE_KEY and {_short(path)}", (key,))


def _logins() -> Iterator[Credential]:
    path = Path.home() / ".kaggle" / "credentials.json"
    content = _json(path)
    if content.get("refresh_token"):
        secrets = tuple(
            str(content[name]) for name in ("refresh_token", "access_token") if name in content
        )
        yield Credential(_short(path), secrets)


def config_folder() -> Path:
    """Return the client's configuration folder; it may not exist."""
    if folder := os.environ.get("KAGGLE_CONFIG_DIR"):
        return Path(folder)
    old = Path.home() / ".kaggle"
    if old.exists():
        return old
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "kaggle")


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_text(path) or "{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _short(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
