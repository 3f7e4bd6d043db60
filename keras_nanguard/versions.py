"""The versions that a report names."""

import functools
import importlib.metadata
import platform

import keras

import keras_nanguard


def versions():
    """name -> version of this package, Keras, the backend that runs, and Python."""
    return dict(_versions())


@functools.cache
def _versions():
    found = {"keras_nanguard": keras_nanguard.__version__, "keras": keras.__version__, "python": platform.python_version()}
    name = keras.config.backend()
    for distribution in (name, f"{name}-cpu"):
        try:
            found[name] = importlib.metadata.version(distribution)
            break
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
