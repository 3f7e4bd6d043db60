"""Norms and finiteness on torch. What the host wants to know comes to it in one transfer."""

import numpy as np
import torch

from ...state import variable_name


def values_of(gradient):
    """The values of a gradient, those of a sparse one that are there."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def host(*scalars):
    """Scalars, on any devices, as a list of numpy float32."""
    device = scalars[0].device
    return list(torch.stack([s.detach().to(device, torch.float32).reshape(()) for s in scalars]).cpu().numpy())


def total_norm(tensors):
    """Global L2 norm as a float32 scalar; not finite where a value is not, and where squares overflow float32."""
    if not tensors:
        return torch.zeros(())
    values = [values_of(t.detach()) for t in tensors]
    return torch.nn.utils.get_total_norm([v if v.dtype in (torch.float32, torch.float64) else v.float() for v in values])


def global_norm(tensors):
    """(norm, whether every value is finite) as numpy scalars, also where the squares overflow float32."""
    (norm,) = host(total_norm(tensors))
    if np.isfinite(norm):
        return norm, True
    values = [values_of(t.detach()) for t in tensors]
    finite = all(bool(torch.isfinite(v).all()) for v in values)
    largest = max((float(v.abs().max()) for v in values if v.numel()), default=0.0)
    if not finite or largest == 0.0:
        return norm, finite
    with np.errstate(over="ignore"):
        return np.float32(largest * float(total_norm([v.double() / largest for v in values]))), True


def all_finite(tensors):
    return global_norm([t for t in tensors if is_float(t)])[1]


def newly_bad(pairs):
    """Whether some value is not finite that was finite before; `(before, now)` pairs."""
    return any(bool((torch.isfinite(before) & ~torch.isfinite(now)).any()) for before, now in pairs if is_float(now))


def is_float(tensor):
    return tensor.dtype.is_floating_point


def clipped(gradients, factor):
    """Gradients times a factor; the given ones stay as they are."""
    return [(g * float(factor)).to(g.dtype) for g in gradients]


def scalar(loss):
    """A loss as a float32 scalar."""
    return torch.as_tensor(loss).detach().float().mean()


class StateCheck:
    """Whether variables are finite: one norm, one flag read by the host."""

    def __init__(self, variables):
        self._variables = [v for v in variables if is_float(v.value)]

    def __call__(self):
        return all_finite([v.value for v in self._variables])

    def names(self):
        """The variables that are not finite, by path."""
        return [variable_name(v) for v in self._variables if not all_finite([v.value])]
