"""Workers of a queue with `pipeline_split`: preparers lease, unpack, encode and compress; senders
send. A bounded channel of batches connects them.

A batch may wait in the channel: a sender sends it only if its lease still holds and the queue is
not paused; otherwise it gives the items back, and no attempt is spent. The number of senders does
not adapt. On drain preparers lease no more, and senders send the rest of the channel.
"""

import trio

from actors.breaker.breaker import Admission
from actors.ports.tiers import Leased
from actors.workers.group import WorkerGroup
from actors.workers.sending import BatchSender, SendBatch, items_of


class SplitWorkerGroup(WorkerGroup):
    async def _run_workers(self) -> None:
        split = self._settings.pipeline_split
        preparers = split.preparer_count or self._shared.cores
        senders = split.sender_count or self._count.count
        put, take = trio.open_memory_channel[SendBatch](split.channel_size)
        async with trio.open_nursery() as nursery, put, take:
            self._preparers = preparers
            for _ in range(preparers):
                nursery.start_soon(self._prepare_all, put.clone())
            for _ in range(senders * self._settings.workers.max_concurrent_sends):
                self._alive += 1
                nursery.start_soon(self._send_all, take.clone())

    async def _prepare_all(self, senders: trio.MemorySendChannel[SendBatch]) -> None:
        async with senders:
            while await self._may_send() and not self._is_draining:
                leased: list[Leased] = []

                async def take(items_max: int, leased: list[Leased] = leased) -> int:
                    leased += await self._lease(items_max)
                    return items_of(leased)

                await self._in_turn(take)
                if not leased:
                    await self._wait()
                    continue
                slices = [lease.slice for lease in leased]
                leased_at = trio.current_time()
                # Compression releases the interpreter lock, which only a thread can exploit.
                prepared = await trio.to_thread.run_sync(self._handler.prepare, slices)
                await senders.send(SendBatch(leased, prepared, leased_at))

    async def _send_all(self, preparers: trio.MemoryReceiveChannel[SendBatch]) -> None:
        to = self._delivering.open_sender()
        try:
            async with preparers:
                async for batch in preparers:
                    await self._send_or_give_back(to, batch)
        finally:
            self._alive -= 1
            with trio.CancelScope(shield=True):
                await to.sender.aclose()

    async def _send_or_give_back(self, to: BatchSender, batch: SendBatch) -> None:
        admission = await self._admission()
        if admission is not None and self._gate.is_open:
            await self._delivering.deliver(to, admission, batch)
            return
        if admission is not None:
            self._shared.breakers.give_up(admission)
        await self._delivering.give_back(batch.leased)

    async def _admission(self) -> Admission | None:
        """The admission to send; None if draining begins while it waits for one."""
        breakers, destination = self._shared.breakers, self._handler.destination
        admission = breakers.admit_nowait(destination)
        if admission is None:
            with self._until_drain():
                return await breakers.admit(destination)
        return admission
