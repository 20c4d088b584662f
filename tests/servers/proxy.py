"""
A line between a client and a server that a test can cut, silence and slow down.

    with Proxy(server.port) as proxy:
        connect(proxy.url(server.url))
        proxy.silence()     # nothing comes through, nothing is closed
        proxy.mend()        # new connections go through; the silent ones stay so
        proxy.cut()         # all connections are reset; new ones go through
        proxy.refuse()      # as if nobody listened there, until `mend`
        proxy.delay = 0.2   # each way
        proxy.cut_after(b"INSERT", b"COMMIT")   # once: the server gets both, the client no answer
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

from .base import HOST

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing drops what is unsent and sends RST
CHUNK = 64 * 1024


class Pair:
    """One connection of a client, and its other half to the server once there is one."""

    def __init__(self, client: asyncio.StreamWriter, *, silent: bool) -> None:
        self.writers = [client]
        self.silent = silent
        self.passed = 0  # how much of what a trap waits for has come by

    def reset(self) -> None:
        for writer in self.writers:
            channel = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):  # closed already
                channel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()


class Proxy:
    """Forwards TCP to a port, which may be changed; every method may be called from any thread."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.delay = 0.0
        self.accepted = 0  # how many connections clients have made
        self.sent = 0  # how often they have sent something
        self._silent = False
        self._trap: tuple[bytes, ...] = ()
        self._pairs: set[Pair] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def url(self, url: str) -> str:
        """The address of a server as seen through this line."""
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{user}@{HOST}:{self.port}"))

    # -- what a test does to it ------------------------------------------------------------------

    def cut(self) -> None:
        """Reset all connections, on both sides."""
        self._call(self._cut())

    def silence(self) -> None:
        """Swallow what comes, on the connections there are and on new ones; close nothing."""
        self._call(self._silence())

    def refuse(self) -> None:
        """Reset all connections and take no new ones."""
        self._call(self._refuse())

    def mend(self) -> None:
        """Let new connections through; what was swallowed is lost, and who waits for it waits."""
        self._call(self._mend())

    def cut_after(self, *texts: bytes) -> None:
        """Reset the next connection that sends all this in turn, once the server has the last."""
        self._call(self._set_trap(texts))

    @property
    def trapped(self) -> bool:
        """Whether a connection was cut since `cut_after`."""
        return not self._trap

    # -- on the loop -----------------------------------------------------------------------------

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _cut(self) -> None:
        for pair in list(self._pairs):
            pair.reset()

    async def _silence(self) -> None:
        self._silent = True
        for pair in self._pairs:
            pair.silent = True

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._cut()

    async def _mend(self) -> None:
        self._silent = False
        if self._server is None:
            await self._listen()

    async def _set_trap(self, texts: tuple[bytes, ...]) -> None:
        self._trap = texts
        for pair in self._pairs:
            pair.passed = 0

    def _is_trapped(self, pair: Pair, data: bytes) -> bool:
        """Whether a client has now sent the last of what the trap waits for."""
        while pair.passed < len(self._trap) and self._trap[pair.passed] in data:
            data = data.partition(self._trap[pair.passed])[2]
            pair.passed += 1
        return 0 < len(self._trap) == pair.passed

    async def _close(self) -> None:
        await self._refuse()
        # Once reset, all end by themselves; asyncio makes a noise about one that is cancelled.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self.accepted += 1
        pair = Pair(client, silent=self._silent)
        self._pairs.add(pair)
        try:
            await self._connect(pair, reader, client)
        except OSError:  # the server is not there, or one side has gone
            pass
        finally:
            self._pairs.discard(pair)
            pair.reset()

    async def _connect(
        self, pair: Pair, reader: asyncio.StreamReader, client: asyncio.StreamWriter
    ) -> None:
        if pair.silent:
            while await reader.read(CHUNK):
                pass
            return
        answers, server = await asyncio.open_connection(HOST, self.target)
        pair.writers.append(server)
        ways = [
            asyncio.ensure_future(self._pump(pair, reader, server, from_client=True)),
            asyncio.ensure_future(self._pump(pair, answers, client)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pump(
        self,
        pair: Pair,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        *,
        from_client: bool = False,
    ) -> None:
        while data := await source.read(CHUNK):
            self.sent += from_client
            if self.delay:
                await asyncio.sleep(self.delay)
            if pair.silent:
                continue
            trapped = from_client and self._is_trapped(pair, data)
            if trapped:
                self._trap, pair.silent = (), True  # the answer goes nowhere
            sink.write(data)
            await sink.drain()
            if trapped:
                await asyncio.sleep(0.1)  # let the server read it: a reset would drop it
                return
        if pair.silent and not from_client:
            # The server has gone, and the client does not learn of it.
            await asyncio.Event().wait()
