from __future__ import annotations
import subprocess, sys, time
import pytest
from tests.integration.joiner_application import Application, application, record, BASE_MS
@pytest.fixture
def app(kafka, tmp_path):
    yield from application(kafka, tmp_path, partitions=1)
CODE = '''
import sys, time, gc, ctypes, threading
from pathlib import Path
from broker.settings import load_settings
from control.settings import Settings
from control.lookup.keys import read_keys
from control.lookup.one_at_a_time import Deadline, OneAtATime
from joiner.runtime.clock import SystemClock
from joiner.runtime.task.unit import Unit
import numpy as np
def now():
    return int([l for l in open("/proc/self/status") if l.startswith("VmRSS")][0].split()[1])/1024
def trimmed():
    gc.collect(); a=now(); ctypes.CDLL("libc.so.6").malloc_trim(0)
    objs = gc.get_objects()
    arrays = sum(o.nbytes for o in objs if isinstance(o, np.ndarray) and o.base is None)
    units = sum(isinstance(o, Unit) for o in objs)
    return "%.0f, trimmed %.0f units %d arrays %.0f" % (a, now(), units, arrays/1e6)
import control.server
s = load_settings(Settings, Path(sys.argv[1])); c = SystemClock()
print("start", trimmed())
one = OneAtATime("x", c)
for n in range(16):
    t=time.monotonic()
    one.submit(n, lambda d: read_keys(s, c, [0], "", d)).result()
    print("%.2f s now %.0f" % (time.monotonic()-t, now()), flush=True)
    if n % 4 == 3: print(trimmed(), flush=True)
'''
@pytest.mark.parametrize("per", [60])
def test_it(app, per, capsys):
    app.application = 'snapshot_interval = "60s"\nsnapshot_records = 200000'
    app.create_topics()
    app.produce([record(f"M{k}", "speed", BASE_MS+10*i, 1.0+k, f"e{k}-{i}") for i in range(per) for k in range(10_000)])
    j = app.start(); app.wait_until_through(300)
    app.produce([record(f"M{k}", "speed", BASE_MS+10*per, 1.0+k, f"f{k}") for k in range(10_000)])
    app.wait_until_through(300)
    with capsys.disabled():
        print("\n", per, "records of each of 10,000 keys")
        print(subprocess.run([sys.executable, "-c", CODE, str(app.config)], capture_output=True, text=True).stdout, flush=True)
    j.kill()
