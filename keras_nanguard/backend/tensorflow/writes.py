"""Which variables a traced step writes, read off its graph."""

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps_utils


class Span:
    """Stretches of a graph's operations, by position: what was traced between `position` and `add`."""

    def __init__(self, graph):
        self._graph, self._bounds = graph, []

    def position(self):
        return len(self._graph.get_operations())

    def add(self, begin):
        self._bounds.append((begin, self.position()))

    def __contains__(self, place):
        return any(begin <= place < end for begin, end in self._bounds)


def written(graph, begin, leave_out=()):
    """Ids of the resource handles, as captured by `graph`, that its operations from `begin` on may write.

    Nested functions (loops, conditions, calls) are covered: TensorFlow marks what they only read.
    """
    handles = set()
    for place, op in enumerate(graph.get_operations()[begin:], begin):
        if place not in leave_out:
            _, writes = auto_control_deps_utils.get_read_write_resource_inputs(op)
            handles.update(id(handle) for handle in writes)
    return handles


def touched(graph, begin):
    """Ids of the resource handles that its operations from `begin` on read or write."""
    handles = set()
    for op in graph.get_operations()[begin:]:
        for some in auto_control_deps_utils.get_read_write_resource_inputs(op):
            handles.update(id(handle) for handle in some)
    return handles


def captured(graph, variable):
    """The id under which `written` knows a variable."""
    return id(graph.capture(variable.handle)) if isinstance(graph, tf.__internal__.FuncGraph) else id(variable.handle)
