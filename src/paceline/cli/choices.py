"""Flags that take one of a few names: another is refused as the flag is read, before anything else is looked at."""

from __future__ import annotations

from collections.abc import Callable

from paceline.errors import ConfigError, did_you_mean


class OneOf:
    """The names there are; in `Annotated`, beside the flag."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def parser(self, flag: str) -> Callable[[str], str]:
        """Reads the text of that flag. ConfigError for a name there is not."""

        def parse(text: str) -> str:
            if text not in self.names:
                raise ConfigError(flag, text, self._words(text))
            return text

        return parse

    def _words(self, text: str) -> str:
        if len(self.names) != 2:
            return "one of " + ", ".join(self.names)
        return " or ".join(self.names) + did_you_mean(text, self.names)
