"""torchft_learner.py NUMBER STEPS WIDTH BATCH CONTEXT: one of two learners that train train_gpt's model with torchft's streaming DiLoCo.

slow_link.py starts each learner on its own host, with Gloo and one thread. The schedule is slow_link.py's: 4 fragments, of which each travels
every 100 steps, for 20 of them. After the first fragment, which does not count, the first learner prints the tokens a second of both.
"""
import gzip
import os
import sys
import time
from datetime import timedelta

import torch
import torch.nn.functional as F
from torch import nn, optim
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo

TEXT = "/usr/share/doc/jargon-text/jargon.txt.gz"
LAYERS, HEADS, VOCABULARY = 4, 4, 256
PERIOD, FRAGMENTS, DELAY = 100, LAYERS, 20
PORT, TIMEOUT = 29570, timedelta(minutes=5)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).chunk(3, -1))
        x = x + self.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, width, context):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        self.h, self.ln_f = nn.ModuleList(Block(width) for _ in range(LAYERS)), nn.LayerNorm(width)
        for embedding in (self.wte, self.wpe):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)

    def fragments(self):
        return [nn.ModuleList([block, *more]) for block, more in zip(self.h, ([self.wte, self.wpe], [], [], [self.ln_f]))]


def main():
    number, steps, width, batch, context = map(int, sys.argv[1:])
    first, own = os.environ["LIGHTHOUSE"], os.environ["HOST"]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Gpt(width, context)
    adam = optim.Adam(model.parameters(), lr=1e-3)
    with gzip.open(TEXT) as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()

    # Each learner is a replica group of one process, with a store of its own.
    lighthouse = LighthouseServer(bind=f"[::]:{PORT}", min_replicas=2) if number == 0 else None
    store = torch.distributed.TCPStore(own, PORT + 1, is_master=True, wait_for_workers=False)
    manager = Manager(pg=ProcessGroupGloo(TIMEOUT), load_state_dict=model.load_state_dict, state_dict=model.state_dict, min_replica_size=2,
                      use_async_quorum=False, init_sync=False, replica_id=f"learner{number}", rank=0, world_size=1, store_addr=own,
                      store_port=store.port, hostname=own, lighthouse_addr=f"http://{first}:{PORT}", timeout=TIMEOUT, quorum_timeout=TIMEOUT)
    fragments = model.fragments()
    outer = [optim.SGD(fragment.parameters(), lr=0.7, momentum=0.9, nesterov=True) for fragment in fragments]
    torch.manual_seed(1 + number)

    def train_on(count):
        for _ in range(count):
            sequences = torch.stack([text[at:at + context + 1] for at in torch.randint(len(text) - context, (batch,))])
            loss = F.cross_entropy(model(sequences[:, :-1]).flatten(0, 1), sequences[:, 1:].flatten())
            adam.zero_grad()
            loss.backward()
            adam.step()
        return loss.item()

    with DiLoCo(manager, fragments, adam, outer, sync_every=PERIOD, fragment_sync_delay=DELAY, use_bucketization=True):
        train_on(PERIOD // FRAGMENTS)
        begin = time.perf_counter()
        loss = train_on(steps)
        seconds = time.perf_counter() - begin
    if number == 0:
        print(f"loss {loss:.4f}, outer steps {manager.current_step()}\nthroughput {2 * batch * context * steps / seconds:.1f} tokens/s", flush=True)
    os._exit(0)  # the threads of the manager and of the lighthouse do not end


main()
