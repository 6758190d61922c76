"""The driver's side of the messages: which worker has which partitions, and what if one dies.

A round sends every worker a short list of operations and waits for what they return: one call
through the scheduler and back, about two milliseconds, with no task, graph or future of its own.
While it waits, it keeps asking the scheduler whether the workers are still there.
The partitions themselves are futures. When a worker is lost, the scheduler computes them again from
their graph on the workers that are left, which then get new homes. A worker that is stopped without
being dead (SIGSTOP, a frozen machine) is one that sends no heartbeat; it is made a lost one.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import dask
import distributed
import numpy as np
from distributed.scheduler import heartbeat_interval
from numpy.typing import NDArray

import sorel
from sorel._lib.warnings import logger
from sorel.dask.shards import ForgottenError, Layout, Message, answer

# Seconds to wait for workers, or for a sign of life from one.
_PATIENCE = 120.0

# Seconds between two looks at partitions that are being computed.
_PAUSE = 0.05

# Losses at one iterate after which the next worker would hardly fare better.
_MAX_LOSSES = 2

# Seconds without an answer after which the scheduler is asked whether a worker is still there.
# Calling one that is not would take half a minute to fail.
_PULSE = 0.2

# Heartbeats missed before a worker may count as stopped: as many as the scheduler grants, whatever
# its own limit.
_MISSED = 10


# States of a future that will never have a result.
_FAILED = {"error", "cancelled"}


class ClusterError(RuntimeError):
    """The cluster cannot go on with a fit; the message says why.

    Attributes
    ----------
    w : array or None
        Parameters of the last iterate of the fit, intercept last.
    coef_, intercept_ : array or float or None
        The same as a fitted estimator would have them.
    """

    w: NDArray[np.float64] | None = None
    coef_: Any = None
    intercept_: Any = None


class WorkersLostError(Exception):
    """Workers did not answer; what they held is gone."""

    def __init__(self, addresses: list[str]) -> None:
        super().__init__(", ".join(addresses))
        self.addresses = addresses


class Each:
    """An argument with a value of its own for each worker."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values


class Partitions:
    """Partitions of one data set on the workers of a cluster.

    Parameters
    ----------
    client : distributed.Client
        How to reach the cluster.
    futures : list of Future
        One :class:`~sorel.dask.shards.Partition` each, in the order of the rows.
    lengths, sizes : array
        Rows and bytes of each.
    layout : Layout
        What the workers must know.
    """

    def __init__(
        self,
        client: distributed.Client,
        futures: list[Any],
        lengths: NDArray[np.int64],
        sizes: NDArray[np.int64],
        layout: Layout,
    ) -> None:
        self.client, self.layout = client, layout
        self._futures, self.lengths, self._sizes = futures, lengths, sizes
        self._name = uuid.uuid4().hex
        self._lock = threading.Lock()
        # Losses since the run has moved, and where it stood then.
        self._losses = 0
        self._stood: NDArray[np.float64] | None = None
        self.epoch = 0
        self.lost_workers = 0
        # Where a run has come so far, for an error that ends it.
        self.reached: NDArray[np.float64] | None = None
        # Runs that nobody holds any more, of which the workers hear with the next message.
        self.ended: list[str] = []
        self.addresses: list[str] = []
        # For each worker the partitions that it holds, in its own order.
        self.holdings: list[list[int]] = []
        self._place()

    @property
    def data(self) -> str:
        """The name of the homes on the workers, new after every loss."""
        return f"{self._name}-{self.epoch}"

    # Rounds.

    def exchange(self, run: str, program: list[tuple[Any, ...]]) -> list[list[Any]]:
        """What every worker returns for a list of operations: one list for each worker."""
        # Emptied in place: whoever tells of an end holds this very list.
        ended = self.ended[:]
        del self.ended[: len(ended)]
        messages = [
            Message(self.data, run, [_for_worker(part, i) for part in program], ended)
            for i in range(len(self.addresses))
        ]
        replies = self._send(self.addresses, messages)
        lost = self._lost(replies)
        if lost:
            raise WorkersLostError(lost)
        return replies

    def _send(self, addresses: list[str], messages: list[Message]) -> list[Any]:
        """Call all workers at once; what they return or raise."""
        try:
            replies: list[Any] = self.client.sync(_call_all, self.client, addresses, messages)
        except (Exception, asyncio.CancelledError) as error:
            # A client whose connection breaks in the middle of a call fails in many ways.
            broken = isinstance(error, OSError | asyncio.CancelledError | RuntimeError)
            if not broken and self.client.status == "running":
                raise
            raise _unreachable(self.client, error) from error
        return replies

    def _lost(self, replies: list[Any]) -> list[str]:
        """The workers that are gone; what others raised is raised here."""
        lost = []
        for place, (address, reply) in enumerate(zip(self.addresses, replies, strict=True)):
            if isinstance(reply, MemoryError):
                raise ClusterError(
                    f"worker {address} ran out of memory on its shard, {self.describe(place)}"
                    f"{': ' if str(reply) else ''}{reply}; use more workers, smaller partitions or "
                    "float32"
                ) from reply
            if isinstance(reply, OSError | EOFError | ForgottenError):
                lost.append(address)
            elif isinstance(reply, Exception):
                raise reply
        return lost

    def describe(self, place: int) -> str:
        """The shard of a worker in words."""
        held = self.holdings[place]
        return (
            f"partitions {_listed(held)}: {int(self.lengths[held].sum())} rows, "
            f"{self._sizes[held].sum() / 2**20:.4g} MiB"
        )

    # Homes.

    def _place(self) -> None:
        """Give every worker a home for the partitions in its memory."""
        deadline = time.monotonic() + _patience()
        while True:
            self._wait_for_futures()
            holders = self._holders()
            if holders:
                self.addresses = sorted(holders)
                self.holdings = [sorted(holders[address]) for address in self.addresses]
                messages = [
                    Message(self.data, "", [("place", self._keys(held), self.layout)], [])
                    for held in self.holdings
                ]
                replies = self._send(self.addresses, messages)
                if not self._lost(replies) and all(replies):
                    return
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{len(self._futures)} partitions found no lasting home within "
                    f"{_patience():g} s: workers come and go; start more workers, or raise the "
                    "setting 'sorel.worker-timeout'"
                )
            time.sleep(_PAUSE)

    def _keys(self, places: list[int]) -> list[Any]:
        return [self._futures[place].key for place in places]

    def _wait_for_futures(self) -> None:
        """Wait until all partitions are computed, as long as there are workers to do so."""
        for place, state in enumerate(wait_for_futures(self.client, self._futures)):
            if state in _FAILED:
                raise self._failure(place, state)

    def _failure(self, place: int, state: str) -> BaseException:
        if state != "error":
            # A scheduler that shuts down cancels everything first.
            try:
                self.client.nthreads()
            except (Exception, asyncio.CancelledError) as failure:
                return _unreachable(self.client, failure)
            if self.client.status != "running":
                return _unreachable(self.client, OSError("connection lost"))
            return ClusterError(
                f"partition {place} is gone ({state}), and no graph is left to compute it again; "
                "give fit a collection that is not made of scattered data"
            )
        error = self._futures[place].exception()
        if isinstance(error, distributed.KilledWorker):
            size = int(self._sizes[place])
            return ClusterError(
                f"partition {place} killed every worker that tried to hold it ({error}): "
                f"{int(self.lengths[place])} rows, {size / 2**20:.4g} MiB; it is most likely too "
                "large for their memory: use smaller partitions or more memory"
            )
        assert error is not None
        return error

    def _holders(self) -> dict[str, list[int]] | None:
        """Partitions by worker, each at one of those that have it; None while some have none."""
        try:
            who = self.client.who_has(self._futures)
        except (OSError, asyncio.CancelledError, RuntimeError) as error:
            raise _unreachable(self.client, error) from error
        holders: dict[str, list[int]] = {}
        for place, future in enumerate(self._futures):
            if self.lengths[place] == 0:
                continue
            addresses = who[future.key]
            if not addresses:
                return None
            # Copies may be anywhere: the worker with the fewest rows so far takes them.
            best = min(
                sorted(addresses), key=lambda a: sum(self.lengths[i] for i in holders.get(a, []))
            )
            holders.setdefault(best, []).append(place)
        return holders

    def recover(self, epoch: int, lost: list[str]) -> None:
        """Find new homes for the partitions, unless another run has done so since `epoch`."""
        with self._lock:
            if epoch != self.epoch:
                return
            self._losses = self._losses + 1 if self.reached is self._stood else 1
            self._stood = self.reached
            self.lost_workers += len(lost)
            shards = "; ".join(
                self.describe(place)
                for place, address in enumerate(self.addresses)
                if address in lost
            )
            if self._losses > _MAX_LOSSES:
                raise ClusterError(
                    f"{self._losses} times in a row workers died over the same step, the last with "
                    f"{shards}; most likely their memory is too small: use more workers, smaller "
                    "partitions or float32"
                )
            logger.warning("lost the workers %s with %s", ", ".join(lost), shards)
            self._leave([address for address in self.addresses if address not in lost])
            self.epoch += 1
            self._place()

    # The order of the rows.

    def gathered(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """One array in the order of the rows from an array of each worker."""
        in_order: dict[int, NDArray[Any]] = {}
        for held, part in zip(self.holdings, parts, strict=True):
            pieces = np.split(part, np.cumsum(self.lengths[held])[:-1])
            in_order.update(zip(held, pieces, strict=True))
        return np.concatenate([in_order[place] for place in sorted(in_order)])

    def scattered(self, array: NDArray[Any]) -> Each:
        """The rows of an array that belong to each worker."""
        pieces = np.split(array, np.cumsum(self.lengths)[:-1])
        return Each([np.concatenate([pieces[i] for i in held]) for held in self.holdings])

    # The end.

    def close(self) -> None:
        """Let the workers forget all."""
        self._leave(self.addresses)

    def _leave(self, addresses: list[str]) -> None:
        """Tell the workers to forget the rows, as far as they are still there."""
        if self.client.status != "running" or not addresses:
            return
        messages = [Message(self.data, "", [("leave",)], [])] * len(addresses)
        try:
            self._send(addresses, messages)
        except ClusterError:
            logger.debug("the workers could not be told to forget their rows")


async def _call_all(
    client: distributed.Client, addresses: list[str], messages: list[Message]
) -> list[Any]:
    """The replies of workers, in the event loop of the client; an OSError if lost."""
    calls = {
        asyncio.ensure_future(
            client._run(answer, message, workers=[address], on_error="return")
        ): place
        for place, (address, message) in enumerate(zip(addresses, messages, strict=True))
    }
    replies: list[Any] = [OSError("lost")] * len(addresses)
    waiting = set(calls)
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, timeout=_PULSE)
            for call in done:
                place = calls[call]
                replies[place] = call.result().get(addresses[place], replies[place])
            if waiting and not done:
                there = await client.scheduler.ncores(workers=None)  # type: ignore[union-attr] # connected
                for call in [call for call in waiting if addresses[calls[call]] not in there]:
                    call.cancel()
                    waiting.discard(call)
    finally:
        for call in waiting:
            call.cancel()
    return replies


def _for_worker(args: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return tuple(arg.values[place] if isinstance(arg, Each) else arg for arg in args)


def _listed(numbers: list[int]) -> str:
    if len(numbers) <= 4:
        return ", ".join(map(str, numbers))
    return f"{numbers[0]}, {numbers[1]}, ... {numbers[-1]} ({len(numbers)} of them)"


def _address(client: distributed.Client) -> str:
    return str(getattr(client.scheduler, "address", "an unknown address"))


def _patience() -> float:
    return float(dask.config.get("sorel.worker-timeout", _PATIENCE))


def _unreachable(client: distributed.Client, error: BaseException) -> ClusterError:
    if client.status in ("closed", "closing"):
        return ClusterError(
            f"the client is {client.status}; make another one with "
            "distributed.Client(address) and fit again"
        )
    return ClusterError(
        f"the scheduler at {_address(client)} does not answer "
        f"({type(error).__name__}: {error}); start the cluster again and fit once more, with "
        "the best parameters so far in the attributes of this error"
    )


def wait_for_futures(client: distributed.Client, futures: list[Any]) -> list[str]:
    """The states of futures once all are finished or one has failed, while there are workers."""
    seen = time.monotonic()
    while True:
        try:
            states = [future.status for future in futures]
        except RuntimeError as error:
            raise _unreachable(client, error) from error
        # One that is "lost" is being computed again, as far as its graph is known.
        if _FAILED & set(states) or all(state == "finished" for state in states):
            return states
        if client.status != "running":
            raise _unreachable(client, OSError("connection lost"))
        if client.nthreads():
            seen = time.monotonic()
        if time.monotonic() - seen > _patience():
            raise ClusterError(
                f"{sum(state != 'finished' for state in states)} of {len(states)} partitions "
                f"are not computed, and there has been no worker for {_patience():g} s; start "
                "some, or raise the setting 'sorel.worker-timeout'"
            )
        time.sleep(_PAUSE)


def find_client(client: distributed.Client | None) -> distributed.Client:
    """The client to use: the one given, or the one that is current."""
    if client is None:
        try:
            return distributed.get_client()
        except ValueError:
            raise ValueError(
                "there is no Dask client: make one, e.g. "
                "client = distributed.Client(n_workers=2) for two processes on this machine, or "
                "distributed.Client('tcp://scheduler:8786'), or pass client="
            ) from None
    if not isinstance(client, distributed.Client):
        raise TypeError(f"client must be a distributed.Client, got {client!r}")
    if client.asynchronous:
        raise ValueError(
            "client is asynchronous; fit needs a client made without asynchronous=True"
        )
    if client.status != "running":
        raise _unreachable(client, OSError("no connection"))
    return client


def wait_for_worker(client: distributed.Client) -> int:
    """The number of workers, when there is one at least."""
    try:
        client.wait_for_workers(1, timeout=_patience())
    except TimeoutError:
        raise ClusterError(
            f"the scheduler at {_address(client)} has had no worker for {_patience():g} s; start "
            "some, e.g. with `dask worker ADDRESS`"
        ) from None
    return len(client.nthreads())


def check_versions(client: distributed.Client) -> None:
    """Refuse workers with another version of sorel, or none: one call to all of them."""

    # Inside, so that it travels by value: workers without this module can run it.
    def version() -> str:
        import sorel

        return sorel.__version__

    for address, found in client.run(version, on_error="return").items():
        if found == sorel.__version__ or isinstance(found, OSError):
            # One that does not answer is lost, which is found out later.
            continue
        has = f"sorel {found}" if isinstance(found, str) else f"no sorel that works ({found})"
        raise ClusterError(
            f"the worker {address} has {has}, and this is sorel {sorel.__version__}; install the "
            f"same version everywhere: pip install 'sorel[dask]=={sorel.__version__}'"
        )


@contextmanager
def dropping_stopped_workers(client: distributed.Client) -> Iterator[None]:
    """Have the scheduler drop workers that send no heartbeat for the patience of a fit.

    It would do so by itself after its setting ``worker-ttl``, 5 minutes by default, and until then
    everything waits for them.
    """
    loop = client.loop.asyncio_loop  # type: ignore[union-attr] # running
    watch = asyncio.run_coroutine_threadsafe(_drop_stopped(client), loop)
    try:
        yield
    finally:
        watch.cancel()


async def _drop_stopped(client: distributed.Client) -> None:
    # For each worker its last heartbeat, and looks since then. Seconds are not counted: while the
    # scheduler itself stands still, or this process does, nobody is seen.
    heard: dict[str, tuple[float, int]] = {}
    while client.status == "running":
        await asyncio.sleep(1.0)
        try:
            workers = (await client.scheduler.identity())["workers"]  # type: ignore[union-attr] # connected
            patience = max(_patience(), _MISSED * heartbeat_interval(len(workers)))
            for address, facts in workers.items():
                last, looks = heard.get(address, (-1.0, 0))
                looks = looks + 1 if facts["last_seen"] == last else 0
                heard[address] = facts["last_seen"], looks
                if looks > patience:
                    logger.warning("no sign of life from worker %s for %d s", address, looks)
                    await client.scheduler.unregister(  # type: ignore[union-attr] # connected
                        address=address, stimulus_id=f"sorel-no-heartbeat-{uuid.uuid4().hex}"
                    )
        except OSError:
            # The scheduler is away, of which the fit has its own word.
            logger.debug("the heartbeats of the workers could not be read")
