"""Flags that take one of a few names: another is refused as the flag is read, before anything else is looked at."""

from __future__ import annotations

from collections.abc import Callable

from paceline.errors import ConfigError


class OneOf:
    """The names there are; in `Annotated`, beside the flag."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def parser(self, flag: str) -> Callable[[str], str]:
        """Reads the text of that flag. ConfigError for a name there is not."""

        def parse(text: str) -> str:
            if text not in self.names:
                raise ConfigError(flag, text, self._words())
            return text

        return parse

    def _words(self) -> str:
        return " or ".join(self.names) if len(self.names) == 2 else "one of " + ", ".join(self.names)
