"""A Llama of Hugging Face with random weights and tp_plan="auto": prints the losses of two batches, and the tokens that it generates, as
each rank sees them. The backend is the first argument."""

import pathlib
import sys
import tempfile

import torch
import torch.distributed as dist
from facts import tell_losses
from transformers import LlamaConfig, LlamaForCausalLM

dist.init_process_group(sys.argv[1])
folder = [None]
with tempfile.TemporaryDirectory() as made:
    if dist.get_rank() == 0:
        torch.manual_seed(0)
        config = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                             vocab_size=128, max_position_embeddings=64)  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(made)
        folder = [made]
    dist.broadcast_object_list(folder, 0)
    model = LlamaForCausalLM.from_pretrained(pathlib.Path(folder[0]), tp_plan="auto")
    dist.barrier()
tokens = torch.randint(128, (2, 24), generator=torch.Generator().manual_seed(1))
losses = []
for batch in tokens.split(1):
    loss = model(batch, labels=batch).loss
    loss.backward()
    losses.append(loss.item())
    losses += [parameter.grad.sum().item() for name, parameter in model.named_parameters() if name.endswith("norm.weight")]
generated = model.generate(tokens[:1, :8], max_new_tokens=12, min_new_tokens=12, do_sample=False, pad_token_id=0)
tell_losses([*losses, *generated[0].tolist()])
dist.destroy_process_group()
