"""torch, several processes: `DistributedDataParallel` in a hand-written loop. `python launch.py 2 torch_distributed.py`, or `torchrun`."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from keras_nanguard import GradientGuard

torch.distributed.init_process_group("gloo")  # "nccl" on GPUs, after torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
rank, workers = torch.distributed.get_rank(), torch.distributed.get_world_size()

rng = np.random.default_rng(0)
x = rng.normal(size=(20, 16, 8)).astype("float32")  # 20 global batches of 16 rows
y = x.sum(axis=2, keepdims=True)
x[5, -1, 3] = np.nan  # one value of the last process is missing
shard = slice(rank * 16 // workers, (rank + 1) * 16 // workers)

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="silu"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.01)
optimizer.build(model.trainable_variables)
guard = GradientGuard(optimizer, model)
parallel = DistributedDataParallel(model)

for step in range(len(x)):
    with guard.forward():
        loss = torch.mean((torch.tensor(y[step, shard]) - parallel(torch.tensor(x[step, shard]))) ** 2)
    model.zero_grad()
    loss.backward()  # the gradients are averaged over the processes
    grads = [v.value.grad for v in model.trainable_variables]
    outcome = guard.apply(grads, model.trainable_variables, loss=loss)
    if not outcome.applied:
        print(f"step {step} was skipped")
if rank == 0:
    print(guard.report())
print("sum of the weights:", float(sum(np.abs(keras.ops.convert_to_numpy(v)).sum() for v in model.variables)))
torch.distributed.destroy_process_group()
