"""The buffers of torch modules inside a Keras model: state that Keras tracks no variable for."""

import keras
import torch


class Buffer:
    """A buffer as the guard and its snapshots handle variables.

    Found by its module and name, since a module may put another tensor in its place.
    """

    def __init__(self, module, name, path):
        self._module, self._name, self.path = module, name, path

    @property
    def value(self):
        return self._module._buffers[self._name]

    @property
    def dtype(self):
        return keras.backend.standardize_dtype(self.value.dtype)

    def read_value(self):
        return self.value

    def numpy(self):
        return keras.ops.convert_to_numpy(self.value)

    def assign(self, value):
        with torch.no_grad():
            self.value.copy_(torch.as_tensor(value))


def buffers(model):
    """The buffers of all torch modules in a model, as a list of `Buffer`."""
    found = []
    for path, module in model.named_modules():
        found += [Buffer(module, name, f"{path}.{name}") for name, value in module._buffers.items() if value is not None]
    return found
