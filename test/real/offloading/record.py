"""Prints what vLLM's offloading connector with the tier p2p understands of kv_transfer_params.

The tier needs a GPU, but its own code that reads the parameters does not. Each line of the input is a JSON object of
parameters; each line of the output is what the tier takes from it: "source", from which engine it loads, under which
name, and whether it asks first which blocks are there; and "dest", under which name another engine will ask for the
blocks of this request.
"""

import dataclasses
import json
import sys

from vllm.v1.kv_offload.base import ReqContext
from vllm.v1.kv_offload.tiering.p2p import manager


def understood(parameters):
    context = ReqContext(req_id="request", kv_transfer_params=parameters)
    manager._annotate_req_context(context)
    found = {}
    for name, kind in ("source", manager.P2PSourceInfo), ("dest", manager.P2PDestInfo):
        state = context.get_state(kind)
        found[name] = dataclasses.asdict(state) if state is not None else None
    return found


for line in sys.stdin:
    print(json.dumps(understood(json.loads(line)), sort_keys=True))
