#!/usr/bin/env python3
"""gpu_check_test.py PACELINE failures|nothing|simulated [SIMULATED_CUDA]: tests `paceline gpu-check` on stand-ins for NVIDIA's libraries.

failures: the ranks' program only pretends, and does one thing wrong in turn. nothing: there is nothing to check. simulated: the whole
command, with the real program, on the simulated devices of the library SIMULATED_CUDA.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PACELINE, PART = os.path.abspath(sys.argv[1]), sys.argv[2]
SIMULATED_CUDA = sys.argv[3] if len(sys.argv) > 3 else ""
STANDINS = ("PACELINE_LIBCUDART", "PACELINE_LIBNCCL")

PROBE = {
    "libtorch": "2.11.0",
    "knows_cuda": True,
    "cuda_error": "",
    "has_c10d_nccl": False,
    "devices": [{"bus_id": "0000:10:00.0", "free_bytes": 1 << 30, "total_bytes": 1 << 31}],
}
# Passes every check, unless WRONG, lines of a shell script, does otherwise. $check is the check, $end writes its outcome.
PRETENDED = """#!/bin/sh
folder=$(dirname "$0")
if [ "$1" = --probe ]; then echo asked >>"$folder/asked"; cat "$folder/probe"; exit; fi
echo "$1 $2" >>"$folder/started-$RANK"
records=$3/records-$RANK.jsonl
end() { echo "{\\"end\\":\\"$check\\",\\"verdict\\":\\"$1\\",\\"text\\":\\"$2\\",\\"advice\\":\\"$3\\",\\"seconds\\":1.5,\\"time\\":$(date +%s.%N),\\"figures\\":{\\"ms\\":$RANK}}" >>"$records"; }
for check in $(echo "$2" | tr , ' '); do
  echo "{\\"begin\\":\\"$check\\"}" >>"$records"
  # As the barrier of the real program.
  [ "$WORLD_SIZE" = 2 ] && until grep -q "begin.*$check" "$3/records-$((1 - RANK)).jsonl" 2>/dev/null; do sleep 0.02; done
WRONG
  end pass
done
"""


class Checked(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) if hasattr(self, "enterContext") else self.old_folder()
        self.report_file = self.folder / "report.json"

    def old_folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return pathlib.Path(folder.name)

    def pretend(self, wrong="", **probe):
        """A program of ranks; `probe` replaces what it says of itself."""
        program = self.folder / "program"
        program.write_text(PRETENDED.replace("WRONG", wrong))
        program.chmod(0o755)
        (self.folder / "probe").write_text(json.dumps({**PROBE, **probe}) + "\n")
        return program

    def check(self, *options, variables=None, without=(), limit=240):
        """Runs the command; sets self.report, if it has written one, and self.verdicts."""
        environment = {name: value for name, value in os.environ.items() if name not in without}
        environment.update(variables or {})
        command = [PACELINE, "gpu-check", "--report", str(self.report_file), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=self.folder, timeout=limit)
        self.report = json.loads(self.report_file.read_text()) if self.report_file.exists() else None
        self.checks = {check["name"]: check for check in self.report["checks"]} if self.report else {}
        self.verdicts = {name: check["verdict"] for name, check in self.checks.items()}
        return done

    def starts(self, rank=0):
        return (self.folder / f"started-{rank}").read_text().splitlines()


class Failures(Checked):
    def test_the_report_has_settings_and_no_secrets(self):
        secrets = {"NVIDIA_API_KEY": "hidden1", "PACELINE_SECRET": "hidden2", "TORCH_token": "hidden3", "SLURM_DB_PASSWORD": "hidden4"}
        self.check("--program", str(self.pretend()), "--only", "host/order", variables={"NCCL_DEBUG": "WARN", **secrets})
        text = self.report_file.read_text()
        self.assertIn('"NCCL_DEBUG": "WARN"', text)
        for value in secrets.values():
            self.assertNotIn(value, text)

    def test_a_report_that_cannot_be_written_is_an_error(self):
        done = self.check("--program", str(self.pretend()), "--only", "host/order", "--report", "/dev/full")
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertIn("/dev/full", done.stderr)

    def test_nothing_fails(self):
        done = self.check("--program", str(self.pretend()), "--only", "host/order,host/messages,host/killed")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(set(self.verdicts.values()), {"pass"})
        self.assertEqual(self.starts(), ["host messages,order", "host killed"])
        self.assertEqual(self.checks["host/order"]["figures"], {"ms": 0})
        self.assertRegex(done.stdout, r"pass +host/order")
        self.assertIn("4 passed, 0 failed, 0 skipped", done.stdout)
        self.assertTrue(self.report["ok"])
        self.assertEqual(self.report["machine"]["libtorch"], "2.11.0")
        self.assertIn("libnccl", self.report["machine"]["nccl"])
        self.assertTrue(self.report["machine"]["is_simulated"])
        self.assertNotIn("SECRET", json.dumps(self.report))

    def test_a_check_that_fails_is_reported_and_the_rest_go_on(self):
        wrong = '  [ $check:$RANK = order:1 ] && { end fail "the sum is 3" "wait for it"; exit 1; }\n  [ $check = order ] && sleep 100'
        done = self.check("--program", str(self.pretend(wrong)), "--only", "host/messages,host/order,host/loader")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(self.verdicts, {"host/messages": "pass", "host/order": "fail", "host/loader": "pass", "host/end": "pass"})
        self.assertEqual(self.checks["host/order"]["text"], "rank 1: the sum is 3")
        self.assertIn("-> wait for it", done.stdout)
        self.assertIn("1 failed (host/order)", done.stdout)
        self.assertEqual(self.starts(), ["host messages,order,loader", "host loader"])

    def test_a_check_that_hangs_is_named_and_the_rest_go_on(self):
        wrong = "  [ $check:$RANK = order:1 ] && sleep 100"
        # The limit begins with the first rank, and the other one may start seconds later on a busy machine.
        done = self.check("--program", str(self.pretend(wrong)), "--only", "host/order,host/loader", "--limit", "15")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(self.verdicts, {"host/order": "fail", "host/loader": "pass", "host/end": "pass"})
        self.assertIn("hang: rank 1 has not finished within 15 s; finished on 0", self.checks["host/order"]["text"])
        self.assertIn("--only host/order", self.checks["host/order"]["advice"])

    def test_a_rank_that_crashes_fails_the_check_that_it_was_in(self):
        wrong = "  [ $check:$RANK = order:1 ] && kill -SEGV $$\n  [ $check = order ] && sleep 100"
        done = self.check("--program", str(self.pretend(wrong)), "--only", "host/order,host/loader")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(self.verdicts, {"host/order": "fail", "host/loader": "pass", "host/end": "pass"})
        self.assertIn("the ranks ended with exit code", self.checks["host/order"]["text"])
        self.assertIn("rank 1", self.checks["host/order"]["output"])

    def test_ranks_that_cannot_begin_fail_every_check_once(self):
        program = self.pretend()
        # The launcher ends the other rank with the first one, perhaps before it has started.
        both = 'until [ -e "$folder/started-$((1 - RANK))" ]; do sleep 0.02; done'
        program.write_text(program.read_text().replace("records=", f"{both}\necho no libcudnn.so.9 >&2; exit 1\nrecords="))
        done = self.check("--program", str(program), "--only", "host/order,host/loader")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(self.verdicts, {"host/order": "fail", "host/loader": "fail"})
        self.assertIn("no libcudnn.so.9", self.checks["host/loader"]["output"])
        self.assertEqual(len(self.starts()), 1)

    def test_ranks_that_fail_when_they_end_are_reported(self):
        program = self.pretend()
        program.write_text(program.read_text() + "sleep 1; exit 139\n")
        done = self.check("--program", str(program), "--only", "host/order")
        self.assertEqual(self.verdicts, {"host/order": "pass", "host/end": "fail"}, done.stdout)

    def test_a_setting_that_mends_nccl_is_found(self):
        two = PROBE["devices"] * 2
        wrong = '  [ -z "$NCCL_NVLS_ENABLE" ] && { end fail "damaged data"; exit 1; }'
        done = self.check("--program", str(self.pretend(wrong, devices=two)), "--only", "nccl/collectives")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(self.verdicts["nccl/with_NCCL_P2P_DISABLE"], "skipped")
        self.assertEqual(self.verdicts["nccl/with_NCCL_NVLS_ENABLE"], "pass")
        self.assertIn("set NCCL_NVLS_ENABLE=0", done.stdout)

    def test_what_one_gpu_cannot_run_is_not_here(self):
        done = self.check("--program", str(self.pretend()), "--only", "nccl/killed,nccl/order")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.verdicts, {"nccl/killed": "skipped", "nccl/order": "pass", "nccl/end": "pass"})
        self.assertIn("one GPU", self.checks["nccl/killed"]["text"])

    def test_the_whole_command_compares_memory_and_runs_nccl_tests(self):
        program = self.pretend()
        less = {**PROBE, "devices": [{**PROBE["devices"][0], "free_bytes": 1}]}
        (self.folder / "less").write_text(json.dumps(less) + "\n")
        program.write_text(program.read_text().replace('cat "$folder/probe"',
                                                       'if [ $(wc -l <"$folder/asked") = 1 ]; then cat "$folder/probe"; else cat "$folder/less"; fi'))
        tool = self.folder / "all_reduce_perf"
        tool.write_text("#!/bin/sh\necho '# Avg bus bandwidth    : 123.5'\n")
        tool.chmod(0o755)
        done = self.check("--program", str(program), variables={"PATH": f"{self.folder}:{os.environ['PATH']}"})
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(self.verdicts["machine/memory_returned"], "fail")
        self.assertIn("GPU 0 has 1024 MiB less free memory", self.checks["machine/memory_returned"]["text"])
        self.assertEqual(self.checks["nccl/nccl_tests"]["figures"], {"average_busbw_gb_s": 123.5})
        self.assertIn("machine/NCCL", self.verdicts)

    def test_what_is_not_a_check_is_refused(self):
        done = self.check("--only", "host/ordr")
        self.assertEqual(done.returncode, 2)
        self.assertIn("did you mean host/order?", done.stderr)


class Nothing(Checked):
    def nothing(self, done, *words):
        self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertIsNone(self.report)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_no_gpu(self):
        self.nothing(self.check(without=STANDINS), "no NVIDIA GPU was found", "docker run --gpus all")

    def test_a_driver_that_is_too_old(self):
        self.nothing(self.check(variables={"STANDIN_CUDA_DRIVER": "11040"}), "no GPU can be used: ", "driver")

    def test_a_libtorch_without_cuda(self):
        program = self.pretend(knows_cuda=False)
        self.nothing(self.check("--program", str(program)), "LibTorch 2.11.0 of this build was built without CUDA", "-DPACELINE_LIBTORCH_WHEEL=")

    def test_a_libtorch_whose_cuda_cannot_be_loaded(self):
        program = self.pretend(knows_cuda=False, cuda_error="cannot load its part for CUDA: libcudnn.so.9: cannot open")
        self.nothing(self.check("--program", str(program)), "cannot load its part for CUDA: libcudnn.so.9")

    def test_a_libtorch_that_sees_no_gpu(self):
        program = self.pretend(devices=[], cuda_error="CUDA error 802")
        self.nothing(self.check("--program", str(program)), "LibTorch 2.11.0 sees no GPU: CUDA error 802")

    def test_no_program(self):
        self.nothing(self.check("--program", str(self.folder / "absent")), "absent is not installed")


class Simulated(Checked):
    SKIPPED = {"nccl/against_c10d", "nccl/graph", "nccl/nccl_tests"}

    def test_the_whole_command(self):
        """All checks with two ranks; those that need CUDA's headers or nccl-tests are skipped."""
        program = pathlib.Path(PACELINE).parents[1] / "libexec/paceline/paceline_gpu_check"
        probe = subprocess.run([program, "--probe"], capture_output=True, text=True, check=True)
        if json.loads(probe.stdout)["knows_cuda"]:
            self.skipTest("this LibTorch has real CUDA devices, beside which none can be simulated")
        variables = {"LD_PRELOAD": SIMULATED_CUDA, "PACELINE_SIMULATED_CUDA_MEMORY": str(1 << 30)}
        done = self.check("--quick", "--nproc", "2", variables=variables, limit=840)
        print(done.stdout, done.stderr)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for name, verdict in self.verdicts.items():
            self.assertEqual(verdict, "skipped" if name in self.SKIPPED else "pass", name)
            if verdict == "skipped":
                self.assertTrue(self.checks[name]["text"])
        self.assertLessEqual({f"{setup}/{check}" for setup in ("nccl", "host") for check in ("collectives", "order", "data_parallel", "killed")} | {"host/replicas"},
                             self.verdicts.keys())
        self.assertEqual(len(self.report["machine"]["devices"]), 4)

    def test_without_the_devices(self):
        """The stand-in of the runtime has GPUs; this LibTorch, without the simulated devices, has no CUDA, cannot load it or sees no GPU."""
        done = self.check()
        self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
        self.assertRegex(done.stderr, "was built without CUDA|cannot load the part of LibTorch for CUDA|sees no GPU")


if __name__ == "__main__":
    suite = unittest.defaultTestLoader.loadTestsFromTestCase({"failures": Failures, "nothing": Nothing, "simulated": Simulated}[PART])
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    if result.wasSuccessful() and result.skipped:
        print("skipped:", result.skipped[0][1])
        sys.exit(77)
    sys.exit(not result.wasSuccessful())
