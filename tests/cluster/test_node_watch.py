"""What a user reads when one of Ray's own processes dies: the node process of the machine, or the cluster's head."""

import subprocess
import sys

PROGRAM = """
import sys
import psutil
from cluster import signals
signals.answer_signals("cloze data prepare x.yaml")
from cluster.runtime import ray_runtime
with ray_runtime("local", num_cpus=1):
    import ray
    (node,) = (child for child in psutil.Process().children() if child.name() == sys.argv[1])
    waiting = ray.remote(lambda: __import__("time").sleep(3600)).remote()
    node.kill()
    ray.get(waiting)
"""


def test_a_node_process_that_dies_is_exit_30_and_one_message():
    done = subprocess.run([sys.executable, "-c", PROGRAM, "raylet"], capture_output=True, text=True)
    assert done.returncode == 30
    said = done.stderr.partition("Ray's node process (raylet) on this machine died")
    assert said[1], done.stderr
    assert "Next: cloze data prepare x.yaml" in said[2]
    assert "state-dump" not in done.stderr


def test_a_head_that_stays_away_is_exit_31_and_one_message():
    # Ray itself waits for a minute.
    program = f"from cluster import node_watch\nnode_watch.RECONNECT_S = 20.0\n{PROGRAM}"
    done = subprocess.run([sys.executable, "-c", program, "gcs_server"], capture_output=True, text=True)
    assert done.returncode == 31, done.stderr
    said = done.stderr.partition("has not answered for 15 s")
    assert said[1], done.stderr
    assert "Next: cloze data prepare x.yaml" in said[2]
    assert "gcs_rpc_client" not in done.stderr
