"""Several processes, one model each, whose gradients torch sums (`DistributedDataParallel`): one verdict for all."""

import numpy as np
import torch
import torch.distributed as dist


def is_chief():
    return not _several() or dist.get_rank() == 0


def _several():
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def agreed():
    """For `update.guarded`: what this process saw becomes what all saw; `None` where there is one process.

    One scalar is summed per step. Only where the sum is not finite do the processes tell which of them it was.
    """
    if not _several():
        return None

    def of_all(loss, state_finite):
        own = float(loss) if state_finite else float("nan")
        total = _sum(own)
        if np.isfinite(total):
            return np.float32(total / dist.get_world_size()), True, None
        losses_finite = _sum(0.0 if np.isfinite(loss) else 1.0) == 0.0
        states_finite = _sum(0.0 if state_finite else 1.0) == 0.0
        replicas = _sum(0.0 if np.isfinite(own) else 2.0 ** dist.get_rank())
        return (np.float32(0.0) if losses_finite and not states_finite else np.float32(total)), states_finite, np.float32(replicas)

    return of_all


def _sum(number):
    value = torch.tensor(number, dtype=torch.float32, device=_device())
    dist.all_reduce(value)
    return float(value)


def _device():
    """NCCL sums on the GPU only."""
    return f"cuda:{torch.cuda.current_device()}" if dist.get_backend() == "nccl" else "cpu"
