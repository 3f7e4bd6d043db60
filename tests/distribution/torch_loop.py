"""`GradientGuard` with `DistributedDataParallel`."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
import torch
import training
from torch.nn.parallel import DistributedDataParallel

from keras_nanguard import GradientGuard

torch.distributed.init_process_group("gloo")
rank, workers = torch.distributed.get_rank(), torch.distributed.get_world_size()
shard = slice(rank * training.ROWS // workers, (rank + 1) * training.ROWS // workers)
sums = []
_all_reduce = torch.distributed.all_reduce


def counted(tensor, *args, **kwargs):
    sums.append(tensor.numel())
    return _all_reduce(tensor, *args, **kwargs)


torch.distributed.all_reduce = counted  # what the guard calls; DistributedDataParallel sums below Python


def run(plan):
    model = training.make_model()
    optimizer = keras.optimizers.Adam(0.01, name="adam")
    optimizer.build(model.trainable_variables)
    guard = GradientGuard(optimizer, model)
    parallel = DistributedDataParallel(model)
    applied, own_sums = [], []
    for number, (x, y) in enumerate(zip(*training.data(plan))):
        if plan.get("dies") == [rank, number]:
            os._exit(3)
        del sums[:]
        with guard.forward():
            loss = torch.mean((torch.tensor(y[shard]) - parallel(torch.tensor(x[shard]), training=True)) ** 2)
        model.zero_grad()
        loss.backward()
        grads = [v.value.grad for v in model.trainable_variables]
        applied.append(bool(guard.apply(grads, model.trainable_variables, loss=loss).applied))
        own_sums.append(list(sums))
    shared = {v.path: v.numpy() for v in [*model.trainable_variables, *optimizer.variables]}
    # plain DistributedDataParallel leaves Keras' moving statistics to each process, and so does the guard
    own = {v.path: v.numpy() for v in model.non_trainable_variables}
    finite = all(np.isfinite(v).all() for v in [*shared.values(), *own.values()])
    training.tell(
        plan, guard.report(), applied=applied, state=training.digests(shared), own=training.digests(own), finite=finite, sums=own_sums
    )


for plan in training.plans():
    run(plan)
torch.distributed.destroy_process_group()
