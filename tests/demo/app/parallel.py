"""Threads, processes with shared memory and locks, and an event loop with children."""

import asyncio
import multiprocessing
import sys
import threading


def threads():
    found = []
    workers = [threading.Thread(target=lambda n=n: found.append(sum(range(n)))) for n in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(found) == [0, 0, 1, 3, 6, 10, 15, 21], found


def square(number):
    return number * number


def processes():
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            assert pool.map(square, range(10)) == [n * n for n in range(10)]
    with multiprocessing.Manager() as manager:
        shared = manager.dict()
        child = multiprocessing.Process(target=shared.update, args=({"a": 1},))
        child.start()
        child.join()
        assert dict(shared) == {"a": 1}


async def loop():
    async def child(word):
        process = await asyncio.create_subprocess_exec("echo", word, stdout=asyncio.subprocess.PIPE)
        text, _ = await process.communicate()
        return text.decode().strip()

    assert await asyncio.gather(child("a"), child("b"), asyncio.sleep(0.01, "c")) == ["a", "b", "c"]

    async def serve(reader, writer):
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, "socket")
    reader, writer = await asyncio.open_unix_connection("socket")
    writer.write(b"through a socket of our own\n")
    assert await reader.readline() == b"through a socket of our own\n"
    writer.close()
    server.close()


if __name__ == "__main__":
    parts = {"threads": threads, "processes": processes, "asyncio": lambda: asyncio.run(loop())}
    for part in sys.argv[1:] or parts:
        parts[part]()
        print(part)
