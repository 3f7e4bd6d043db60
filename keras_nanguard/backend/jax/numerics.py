"""Norms and finiteness on JAX, branches that run on the host where the values are there already."""

import functools

import jax
import jax.numpy as jnp

from ...state import variable_name
from .distribution import local_values


def is_traced(*trees):
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(trees))


def choose(index, branches):
    """`lax.switch` of functions without arguments; eager code takes the branch itself, for a compiled one rounds otherwise."""
    if is_traced(index):
        return jax.lax.switch(index, branches)
    return branches[int(index)]()


def is_float(value):
    return jnp.issubdtype(value.dtype, jnp.floating)


@jax.jit
def global_norm(gradients):
    """(norm, whether every gradient is finite), also where the squares overflow float32."""
    if not gradients:
        return jnp.zeros(()), jnp.array(True)
    squared = sum(jnp.sum(jnp.square(g.astype("float32"))) for g in gradients)
    finite = jnp.isfinite(squared)
    return jax.lax.cond(finite, lambda: (jnp.sqrt(squared), finite), lambda: _norm_of_large(gradients))


def _norm_of_large(gradients):
    values = [g.astype("float32") for g in gradients if g.size]
    finite = functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(v)) for v in values], jnp.array(True))
    largest = functools.reduce(jnp.maximum, [jnp.max(jnp.abs(v)) for v in values], jnp.zeros(()))
    squared = sum(jnp.sum(jnp.square(v / largest)) for v in values)
    return largest * jnp.sqrt(squared), finite


@jax.jit
def newly_bad(before, after):
    """Whether some value is not finite that was finite before."""
    bad = jnp.array(False)
    for old, new in zip(before, after):
        if is_float(new):
            bad = jnp.logical_or(bad, jnp.any(jnp.logical_and(jnp.isfinite(old), jnp.logical_not(jnp.isfinite(new)))))
    return bad


@jax.jit
def all_finite(values):
    return functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(v)) for v in values if is_float(v)], jnp.array(True))


def clipped(gradients, factor):
    return [(g.astype("float32") * factor).astype(g.dtype) for g in gradients]


def scalar(loss):
    """A loss as a float32 scalar."""
    return jnp.mean(jnp.asarray(loss).astype("float32"))


class StateCheck:
    """Whether variables are finite: a compiled reduction, one flag read by the host."""

    def __init__(self, variables):
        self._variables = [v for v in variables if is_float(v.value)]

    def __call__(self):
        return bool(all_finite(local_values(self._variables)))

    def names(self):
        """The variables that are not finite, by path."""
        return [variable_name(v) for v in self._variables if not bool(all_finite(local_values([v])))]
