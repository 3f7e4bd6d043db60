"""For all tests: the backend that was asked for is the one that is tested."""

import os

import pytest
from hypothesis import settings

# Before anything imports keras; with no choice made, a keras.json of the machine's must not make one.
_ASKED = os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# The first example traces a graph and takes seconds.
settings.register_profile("keras_nanguard", deadline=None)
settings.load_profile("keras_nanguard")


def pytest_ignore_collect(collection_path):
    """A file with backends in its name is for them: `test_x_jax.py`, `test_y_tensorflow_torch.py`."""
    named = {"tensorflow", "jax", "torch"} & set(collection_path.stem.split("_"))
    return True if named and _ASKED not in named else None


@pytest.fixture(scope="session", autouse=True)
def the_backend_asked_for_is_active():
    import keras

    active = keras.config.backend()
    if active != _ASKED:
        pytest.exit(f"KERAS_BACKEND={_ASKED} was asked for and Keras runs on {active!r}: nothing was tested.", returncode=3)


@pytest.fixture(scope="session")
def strategy():
    """One for all tests: two `MirroredStrategy`s over the same devices mix up each other's collective operations."""
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def pytest_configure():
    """Two logical CPU devices, for `MirroredStrategy`; they can only be made before anything has used the first."""
    if _ASKED == "tensorflow":
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
