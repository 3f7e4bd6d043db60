"""The guard's memory as JAX arrays, which travel through the compiled step beside the training state."""

import jax
import numpy as np

from ...step import memory as layout
from .distribution import on_devices


class Memory:
    """Holds the arrays between two steps.

    Attributes:
        values: name -> array; a step takes them (they are donated to it) and gives the new ones.
    """

    def __init__(self, spec):
        self.values = initial(spec)

    def read(self):
        return {name: np.array(value) for name, value in self.values.items()}

    def write(self, values):
        self.values = {**self.values, **on_devices(values)}

    def begin_epoch(self):
        self.write(layout.epoch_begun(self.read()))


def initial(spec):
    return on_devices(layout.initial(spec))


def stored(before, change):
    """What `step.memory.stored` says, on arrays that may be traced."""
    after = {**before, **{name: value for name, value in change.items() if name in before}}
    for name, part, count in layout.PLACES:
        if part in change:
            place = before["counts"][layout.COUNTS.index(count)] % before[name].shape[0]
            after[name] = before[name].at[place].set(change[part])
    # the types of the arrays stay what they were, so that nothing is traced twice
    return {name: jax.lax.convert_element_type(value, before[name].dtype) for name, value in after.items()}
