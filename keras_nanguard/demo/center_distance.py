"""The second seed case: a distance between class centres as the loss of a segmentation, on a photograph of coins."""

import keras
import numpy as np
from keras import ops

from ..losses import ClassCenterDistance
from . import text
from .story import tell
from .training import Batches, Task, in_fit

TITLE = "2. A distance between class centres on scikit-image's photograph of coins"
MARGIN = 1.2
PATCH = 16


def center_distance(y_true, y_pred):
    """The loss as people write it: pushes the mean predictions of the two classes apart, up to a margin."""
    class0 = ops.cast(ops.equal(y_true, 0), y_pred.dtype)[..., None]
    class1 = ops.cast(ops.equal(y_true, 1), y_pred.dtype)[..., None]
    center0 = ops.sum(class0 * y_pred, axis=(0, 1, 2)) / ops.sum(class0)
    center1 = ops.sum(class1 * y_pred, axis=(0, 1, 2)) / ops.sum(class1)
    return ops.maximum(MARGIN - ops.sqrt(ops.sum(ops.square(center0 - center1))), 0.0)


def load():
    """`(x, y), (x, y)`: patches of the left three quarters of the photograph, and of the rest, with Otsu's mask."""
    from skimage import data, filters

    photo = data.coins()
    mask = (photo > filters.threshold_otsu(photo)).astype("float32")
    rows, columns = (size // PATCH for size in photo.shape)

    def patches(image):
        image = image[: rows * PATCH, : columns * PATCH].reshape(rows, PATCH, columns, PATCH)
        return image.swapaxes(1, 2).reshape(-1, PATCH, PATCH)

    x = patches((photo - photo.mean()) / photo.std()).astype("float32")[..., None]
    y = patches(mask)
    left = np.arange(len(x)) % columns < 0.75 * columns
    return (x[left], y[left]), (x[~left], y[~left])


def make_model():
    """A small fully convolutional network, the same weights each time."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    block = lambda: [layers.Conv2D(8, 3, padding="same"), layers.BatchNormalization(), layers.ReLU()]
    return keras.Sequential(
        [keras.Input((PATCH, PATCH, 1)), *block(), *block(), layers.Conv2D(2, 1, activation="softmax")]
    )


def task():
    """Batches of three patches: some hold background only."""
    (x, y), (held_x, held_y) = load()

    def score(model, held_out):
        inputs, labels = (held_x, held_y) if held_out else (x, y)
        p = ops.convert_to_numpy(model(inputs, training=False))
        agree = np.mean(p.argmax(-1) == labels)
        # The loss leaves open which channel stands for which class.
        return float(ClassCenterDistance(MARGIN)(labels, p)), max(agree, 1 - agree)

    return Task(make_model, Batches(x, y, 3), score, learning_rate=1e-3, epochs=4, steps_per_epoch=108)


def absent_class(setting, step, model):
    """Which class the batch of a step lacks."""
    y = setting.batches.at(step)[1]
    missing = [name for label, name in ((0, "background"), (1, "coin")) if not np.any(y == label)]
    return f"no {missing[0]} pixel in the batch, its mean is 0/0" if missing else "both classes are there"


def run(say):
    """The case in `fit`; gives the outcomes by `(setting, door)`."""
    setting = task()
    y = setting.batches.y
    one_class = sum(len(np.unique(patch)) == 1 for patch in y)
    say(text.heading(TITLE))
    say(text.paragraph(_INTRO.format(margin=MARGIN, patches=len(y), size=PATCH, one_class=one_class)))
    losses = center_distance, ClassCenterDistance(MARGIN)
    door = "one-class batches, in `fit` with NanGuardCallback"
    return {("one-class", "fit"): tell(setting, in_fit, losses, absent_class, door, say)}


_INTRO = """loss = max({margin} - distance(mean softmax over class 0, mean softmax over class 1), 0). {patches}
patches of {size} x {size} pixels to train on, {one_class} of them of one class only; in a batch of such patches
one of the two means is a mean of nothing, 0/0. (The loss leaves open which channel is which class; the accuracy takes
the better naming.)"""
