"""Functions that run in blocks of a context manager. Generators, coroutines and asynchronous generators are in a block
while their own code runs, and in none while they are suspended."""

import functools
import inspect
import types
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any

Block = Callable[[], AbstractContextManager[Any]]  # makes a new one for each step


def within(function: Callable[..., Any], block: Block) -> Callable[..., Any]:
    """A function of the same kind that runs in blocks, and so does what it returns if that runs later."""
    is_plain = inspect.isroutine(function) or isinstance(function, functools.partial)
    code: Any = function if is_plain else type(function).__call__
    if inspect.isgeneratorfunction(code):

        def generator(*args: Any, **kwargs: Any) -> Any:
            return (yield from _steps(function(*args, **kwargs), block))

        return functools.wraps(function)(generator)
    if inspect.iscoroutinefunction(code):

        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            return await _awaited(function(*args, **kwargs), block)

        return functools.wraps(function)(coroutine)
    if inspect.isasyncgenfunction(code):
        return functools.wraps(function)(_asynchronous(function, block))

    def called(*args: Any, **kwargs: Any) -> Any:
        with block():
            result = function(*args, **kwargs)
        if inspect.isgenerator(result):
            return _steps(result, block)
        if inspect.iscoroutine(result):
            return _awaited(result, block)
        return _asynchronous(lambda: result, block)() if inspect.isasyncgen(result) else result

    return functools.wraps(function)(called)


def _steps(inner: Any, block: Block) -> Generator[Any, Any, Any]:
    """What a generator yields and returns, or what is awaited, with a block around each step."""
    step = functools.partial(inner.send, None)
    while True:
        try:
            with block():
                value = step()
        except StopIteration as stop:
            return stop.value
        try:
            step = functools.partial(inner.send, (yield value))
        except GeneratorExit:
            with block():
                inner.close()
            raise
        except BaseException as error:
            step = functools.partial(inner.throw, error)


@types.coroutine
def _of_steps(inner: Any, block: Block) -> Generator[Any, Any, Any]:
    return (yield from _steps(inner, block))


async def _awaited(inner: Any, block: Block) -> Any:
    return await _of_steps(inner, block)


def _asynchronous(function: Callable[..., Any], block: Block) -> Callable[..., Any]:
    async def generator(*args: Any, **kwargs: Any) -> Any:
        inner = function(*args, **kwargs)
        step = inner.asend(None)
        while True:
            try:
                value = await _awaited(step, block)
            except StopAsyncIteration:
                return
            try:
                step = inner.asend((yield value))
            except GeneratorExit:
                await _awaited(inner.aclose(), block)
                raise
            except BaseException as error:
                step = inner.athrow(error)

    return generator
