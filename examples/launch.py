"""Starts a program several times on this machine, as the processes of one training: `python launch.py 2 program.py [arguments]`.

Each process is told its place in the way that its framework reads it: `TF_CONFIG` (TensorFlow), `KERAS_DISTRIBUTION_*`
(`keras.distribution.initialize()` on JAX), and `MASTER_ADDR`, `MASTER_PORT`, `RANK`, `WORLD_SIZE` (torch). On a cluster its
own launcher sets these; with torch `torchrun` does the same.
"""

import json
import os
import socket
import subprocess
import sys
import threading


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def environments(count):
    """What each of `count` processes finds in its environment: a list of dicts."""
    *workers, coordinator = [f"127.0.0.1:{port}" for port in free_ports(count + 1)]
    host, port = coordinator.split(":")
    for rank in range(count):
        task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        yield {
            "TF_CONFIG": json.dumps(task),
            "KERAS_DISTRIBUTION_JOB_ADDRESSES": coordinator,
            "KERAS_DISTRIBUTION_NUM_PROCESSES": str(count),
            "KERAS_DISTRIBUTION_PROCESS_ID": str(rank),
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
        }


def start(count, command):
    """The processes, their output piped; a list of `subprocess.Popen`."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return [subprocess.Popen([sys.executable, *command], env={**os.environ, **own}, **pipes) for own in environments(count)]


def main():
    if len(sys.argv) < 3 or not sys.argv[1].isdigit():
        sys.exit(__doc__)
    processes = start(int(sys.argv[1]), sys.argv[2:])

    def show(rank, process):
        for line in process.stdout:
            print(f"[{rank}] {line}", end="", flush=True)

    threads = [threading.Thread(target=show, args=pair) for pair in enumerate(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.exit(max(abs(process.wait()) for process in processes))


if __name__ == "__main__":
    main()
