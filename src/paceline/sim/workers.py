"""Simulations beside each other: plain functions called in other processes, with the results they have in this one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from types import TracebackType
from typing import ParamSpec, TypeVar

from paceline.errors import ConfigError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Workers:
    """Use as a context manager. What is submitted must be a function of a module, and picklable like its arguments."""

    def __init__(self, processes: int = 1) -> None:
        """With one process a call is made when it is submitted, in this one."""
        if processes < 1:
            raise ConfigError("--processes", processes, "a whole number of at least 1")
        self._pool: ProcessPoolExecutor | None = None
        if processes > 1:
            self._pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))

    def submit(
        self, function: Callable[Parameters, Result], *arguments: Parameters.args, **named: Parameters.kwargs
    ) -> Future[Result]:
        """The result to be, or the error."""
        if self._pool is not None:
            return self._pool.submit(function, *arguments, **named)
        future: Future[Result] = Future()
        try:
            future.set_result(function(*arguments, **named))
        except Exception as error:
            future.set_exception(error)
        return future

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=error is not None)
