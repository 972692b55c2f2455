"""Carry TCP connections on: ``python relay.py HOST PORT TO_HOST TO_PORT``."""

from __future__ import annotations

import asyncio
import contextlib
import sys


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    writer.close()


async def main(host: str, port: int, to_host: str, to_port: int) -> None:
    async def connected(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(to_host, to_port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))

    server = await asyncio.start_server(connected, host, port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
