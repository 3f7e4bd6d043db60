"""Arrays under a `keras.distribution`: over the devices of this process and of others."""

import jax
import jax.numpy as jnp
import keras
import numpy as np


def is_chief():
    return jax.process_index() == 0


def on_devices(arrays):
    """Numpy arrays where the training state is: on every device of a `keras.distribution`, whole, in every process."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return {name: jnp.array(value) for name, value in arrays.items()}
    everywhere = jax.sharding.NamedSharding(distribution.device_mesh.backend_mesh, jax.sharding.PartitionSpec())
    whole = lambda value: jax.make_array_from_callback(value.shape, everywhere, lambda part: value[part])
    return {name: whole(np.asarray(value)) for name, value in arrays.items()}


def local_values(variables):
    """The arrays that variables hold; as this process can look at them without the others, where it holds all of them whole."""
    values = [variable.value for variable in variables]
    if all(value.is_fully_replicated for value in values):
        return [value.addressable_data(0) for value in values]
    return values


def host_copy(variable):
    """A numpy array, or a dict of them by device, where other processes hold the rest."""
    value = variable.value
    if value.is_fully_addressable or value.is_fully_replicated:
        return np.array(value)
    return {shard.device: np.array(shard.data) for shard in value.addressable_shards}


def put_back(variable, copy):
    if isinstance(copy, dict):
        parts = [jax.device_put(part, device) for device, part in copy.items()]
        copy = jax.make_array_from_single_device_arrays(variable.shape, variable.value.sharding, parts)
    variable.assign(copy)
