"""Shows the tests which KV blocks an engine holds, and how they came and went.

vLLM has no route for it. As a plugin of vLLM (group vllm.general_plugins) this is loaded in every process of an
engine, and serves the contents of each block pool on a Unix socket below the directory KVASIR_TRUTH: one line of JSON,
{"blocks": [[hash, group, half], ...], "total": N}, then the end. Equal hashes are copies of one block. Half names what
the first 16 tokens of the block say with all before them, and with the images up to the block's end: blocks that differ only behind
those have it in common.

A second socket, with the ending .chains in place of .sock, has the tokens of the longest prefixes that are held without a
gap, as a list of lists: of blocks without adapters, salts and images only.

The file PID.jsonl beside the sockets has a line for each step in the life of a request or a block, with its time in
seconds since 1970:

    {"at": T, "what": "came", "request": ID}               the scheduler got the request
    {"at": T, "what": "found", "request": ID, "tokens": N, "hashes": [...]}
                                                           N tokens of its prompt, which has these blocks, are cached
    {"at": T, "what": "removed", "hash": HASH, "by": ID}   the block was evicted to make room for the request
    {"at": T, "what": "stored", "request": ID, "hashes": [...]} these blocks of the request are in the cache from now on
    {"at": T, "what": "published"}                         the events of all lines above were given to the publisher
    {"at": T, "what": "sent"}                              the publisher's thread gave the next of these batches to ZeroMQ
"""

import inspect
import json
import os
import socket
import threading
import time


def register():
    if os.environ.get("KVASIR_NO_ACCELERATOR"):
        # MooncakeConnector asks for the number of its GPU. This is all that it needs to run without one.
        import torch

        torch.accelerator.current_device_index = lambda: 0
    directory = os.environ.get("KVASIR_TRUTH")
    if not directory:
        return
    from vllm.v1.core import block_pool

    if getattr(block_pool.BlockPool, "kvasir_truth", False):
        return
    block_pool.BlockPool.kvasir_truth = True
    original = block_pool.BlockPool.__init__

    def init(self, *args, **kwargs):
        original(self, *args, **kwargs)
        for ending, shown in ("sock", contents), ("chains", chains):
            server = socket.socket(socket.AF_UNIX)
            server.bind(os.path.join(directory, f"{os.getpid()}-{id(self):x}.{ending}"))
            server.listen(8)
            threading.Thread(target=serve, args=(server, self, shown), daemon=True).start()

    block_pool.BlockPool.__init__ = init
    cache = block_pool.BlockPool.cache_full_blocks
    signature = inspect.signature(cache)

    def cache_full_blocks(self, *args, **kwargs):
        result = cache(self, *args, **kwargs)
        remember(signature.bind(self, *args, **kwargs).arguments)
        return result

    block_pool.BlockPool.cache_full_blocks = cache_full_blocks
    log_steps(block_pool.BlockPool, signature, open(os.path.join(directory, f"{os.getpid()}.jsonl"), "a", buffering=1))


def log_steps(pool, signature, file):
    """Writes down what the schedulers of this process do; signature is that of cache_full_blocks."""
    from vllm.distributed.kv_events import ZmqEventPublisher
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.scheduler import Scheduler

    room_for = [""]  # the request that blocks are being allocated for

    def write(what, **fields):
        file.write(json.dumps({"at": time.time(), "what": what, **fields}) + "\n")

    def wrap(owner, name, before=None, after=None):
        original = getattr(owner, name, None)
        if original is None:
            return

        def wrapped(self, *args, **kwargs):
            if before:
                before(self, *args, **kwargs)
            result = original(self, *args, **kwargs)
            if after:
                after(self, result, *args, **kwargs)
            return result

        setattr(owner, name, wrapped)

    def allocating(manager, request, *_, **__):
        room_for[0] = request.request_id

    def removing(_, block):
        if block.block_hash is not None:
            write("removed", hash=split(block.block_hash)[0], by=room_for[0])

    def stored(pool, _, *args, **kwargs):
        call = signature.bind(pool, *args, **kwargs).arguments
        new = call["blocks"][call["num_cached_blocks"] : call["num_full_blocks"]]
        hashes = [split(block.block_hash)[0] for block in new if block.block_hash is not None]
        write("stored", request=call["request"].request_id, hashes=hashes)

    def connected(publisher, _):
        publisher._pub = Logged(publisher._pub, lambda: write("sent"))

    def found(_, result, request):
        if getattr(request, "num_preemptions", 0) == 0:  # usage counts what the first schedule found
            hashes = [name(h) for h in getattr(request, "block_hashes", [])]
            write("found", request=request.request_id, tokens=result[1], hashes=hashes)

    wrap(Scheduler, "add_request", before=lambda _, request: write("came", request=request.request_id))
    wrap(KVCacheManager, "allocate_slots", before=allocating)
    wrap(KVCacheManager, "get_computed_blocks", after=found)
    wrap(KVCacheManager, "take_events", after=lambda _, events: write("published") if events else None)
    wrap(pool, "_maybe_evict_cached_block", before=removing)
    wrap(pool, "cache_full_blocks", after=stored)
    wrap(ZmqEventPublisher, "_socket_setup", after=connected)


class Logged:
    """A socket that says when it has sent a message."""

    def __init__(self, socket, sent):
        self._socket, self._sent = socket, sent

    def send_multipart(self, *args, **kwargs):
        self._sent()
        return self._socket.send_multipart(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(self._socket, name)


halves = {}
tokens = {}  # of a block, with the key of the one before it


def remember(call):
    request, size = call["request"], call["block_size"]
    for i in range(call["num_cached_blocks"], call["num_full_blocks"]):
        key = call["blocks"][i].block_hash
        if key is None:
            continue
        start = tuple(request.all_token_ids[: i * size + 16])
        adapter = getattr(getattr(request, "lora_request", None), "lora_name", None)
        salt = getattr(request, "cache_salt", None)
        features = getattr(request, "mm_features", None) or []
        items = tuple(
            (f.identifier, f.mm_position.offset) for f in features if f.mm_position.offset < (i + 1) * size
        )
        halves[key] = hash((start, salt, adapter, items))
        if not adapter and not salt and not features:
            before = call["blocks"][i - 1].block_hash if i else None
            tokens[key] = (before, i, list(request.all_token_ids[i * size : (i + 1) * size]))


def serve(server, pool, shown):
    while True:
        client, _ = server.accept()
        with client:
            try:
                client.sendall(json.dumps(shown(pool)).encode() + b"\n")
            except OSError:
                pass


def contents(pool):
    blocks = []
    for block in pool.blocks:
        key = block.block_hash
        if key is not None:
            blocks.append(split(key) + [str(halves.get(key))])
    return {"blocks": blocks, "total": len(pool.blocks)}


def chains(pool):
    held = {block.block_hash for block in pool.blocks if block.block_hash in tokens}
    inner = {tokens[key][0] for key in held}
    found = []
    for key in held - inner:
        chain = []
        while key in held:
            key, i, part = tokens[key]
            chain[:0] = part
            if i == 0:
                found.append(chain)
    return found


def split(key):
    """Returns a block's hash in hexadecimal and its group; releases name them in three ways."""
    if isinstance(key, bytes):  # the hash, then the group in four bytes
        return [key[:-4].hex(), int.from_bytes(key[-4:], "big")]
    return [name(getattr(key, "block_hash", key)), getattr(key, "group_id", 0)]


def name(block_hash):
    """Returns a hash in hexadecimal."""
    value = getattr(block_hash, "hash_value", block_hash)
    return value.hex() if isinstance(value, bytes) else str(value)
