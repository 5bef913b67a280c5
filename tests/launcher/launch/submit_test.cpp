// `paceline submit`: scripts that start the program with its arguments, whatever these contain, and
// manifests that Kubernetes would accept.

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/harness/says.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using Arguments = std::vector<std::string>;

const Arguments kFromPath = {"--remote-paceline=paceline"};

Outcome submit(const std::string& where, Arguments options, const Arguments& program) {
  options.insert(options.begin(), {"submit", where, "--dry-run"});
  options.insert(options.end(), program.begin(), program.end());
  return run_paceline(options);
}

class SubmitSlurm : public testing::Test {
 protected:
  // Runs the script, with other commands in place of paceline and scontrol.
  PacelineProcess start(const Outcome& script, const std::string& paceline) {
    for (const auto& [name, text] : std::map<std::string, std::string>{
             {"paceline", paceline}, {"scontrol", "echo scontrol \"$@\""}}) {
      directory.write(name, "#!/bin/bash\n" + text + "\n");
      chmod(directory.file(name).c_str(), 0755);
    }
    return PacelineProcess({directory.write("job.sh", script.out)},
                           {{"PATH", directory.path() + ":/usr/bin:/bin"}, {"SLURM_JOB_ID", "7"}},
                           "/bin/bash");
  }

  FreshDirectory directory;
};

TEST_F(SubmitSlurm, writes_the_directives_of_its_flags) {
  const Outcome outcome = submit("slurm",
                                 {"--nnodes",
                                  "2",
                                  "--nproc-per-node",
                                  "4",
                                  "--threads-per-rank",
                                  "8",
                                  "--time",
                                  "4:00:00",
                                  "--job-name",
                                  "train",
                                  "--partition",
                                  "long",
                                  "--array",
                                  "0-9%2",
                                  "--mem",
                                  "16G",
                                  "--signal-before",
                                  "300",
                                  "--output",
                                  "logs/%x-%j.out",
                                  "--all-ranks"},
                                 {"./train", "--lr", "0.1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* line :
       {"#!/bin/bash\n", "#SBATCH --job-name=train\n", "#SBATCH --nodes=2\n",
        "#SBATCH --ntasks-per-node=4\n", "#SBATCH --cpus-per-task=8\n", "#SBATCH --time=4:00:00\n",
        "#SBATCH --partition=long\n", "#SBATCH --array=0-9%2\n", "#SBATCH --mem=16G\n",
        "#SBATCH --signal=B:USR1@300\n", "#SBATCH --requeue\n", "#SBATCH --output=logs/%x-%j.out\n",
        "paceline run --nproc-per-node=4 --threads-per-rank=8 --all-ranks -- ./train --lr 0.1 "
        "&\n"}) {
    EXPECT_THAT(outcome.out, HasSubstr(line));
  }
  EXPECT_THAT(outcome.out, Not(HasSubstr("--account")));
}

TEST_F(SubmitSlurm, starts_the_paceline_that_wrote_it) {
  const std::string self = std::filesystem::canonical(PACELINE_COMMAND).string();
  EXPECT_THAT(submit("slurm", {}, {"./train"}).out, HasSubstr("\n" + self + " run "));
}

TEST_F(SubmitSlurm, passes_the_programs_arguments_and_the_exit_code_on) {
  const std::string odd = "it's $HOME `id`;\n#SBATCH --x \"\\ *";
  auto job =
      start(submit("slurm", kFromPath, {"./train", odd}), "printf '%s' \"${@: -1}\"; exit 7");
  const Outcome outcome = job.wait();
  EXPECT_EQ(outcome.exit_code, 7) << outcome.err;
  EXPECT_EQ(outcome.out, odd);
}

TEST_F(SubmitSlurm, passes_the_signal_on_and_queues_a_job_again_that_stopped_as_agreed) {
  const std::string stops =
      "trap 'echo saved; exit 85' USR1; echo ready; "
      "while :; do sleep 0.02; done";
  auto job = start(submit("slurm", kFromPath, {"./train"}), stops);
  job.wait_for_lines("ready", 1);
  job.send(SIGUSR1);
  const Outcome outcome = job.wait();
  EXPECT_EQ(outcome.exit_code, 85) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("saved\n"));
  EXPECT_THAT(outcome.out, HasSubstr("scontrol requeue 7\n"));
  auto other = start(submit("slurm", {"--no-requeue", "--remote-paceline=paceline"}, {"./train"}),
                     "exit 85");
  EXPECT_THAT(other.wait().out, Not(HasSubstr("scontrol")));
}

TEST_F(SubmitSlurm, queues_a_job_again_that_ends_while_a_signal_interrupts_the_script) {
  Outcome script = submit("slurm", kFromPath, {"./train"});
  // Sends the signal and returns when bash has reaped the launcher.
  const std::string slow_kill =
      "kill() { command kill \"$@\" || return; [ \"$1\" = -0 ] || "
      "while command kill -0 \"$3\" 2>/dev/null; do sleep 0.02; done; }\n";
  script.out.insert(script.out.find('\n') + 1, slow_kill);
  auto job = start(script, "trap 'exit 85' USR1; echo ready; while :; do sleep 0.02; done");
  job.wait_for_lines("ready", 1);
  job.send(SIGUSR1);
  const Outcome outcome = job.wait();
  EXPECT_EQ(outcome.exit_code, 85) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("scontrol requeue 7\n"));
}

TEST_F(SubmitSlurm, takes_what_sbatch_takes) {
  for (const Arguments& options : std::vector<Arguments>{{"--time", "3"},
                                                         {"--time", "2:01"},
                                                         {"--time", "1-12"},
                                                         {"--time", "0"},
                                                         {"--time", "1", "--signal-before", "0"},
                                                         {"--array", "0-15%4"},
                                                         {"--array", "1,3,5-9:2"}}) {
    const Outcome outcome = submit("slurm", options, {"./train"});
    EXPECT_EQ(outcome.exit_code, 0) << options.at(1) << ": " << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("#SBATCH " + options.at(0) + "=" + options.at(1) + "\n"));
  }
}

TEST_F(SubmitSlurm, refuses_values_that_slurm_would_read_as_something_else) {
  const auto refused = [](const Arguments& options) {
    const Outcome outcome = submit("slurm", options, {"./train"});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  };
  EXPECT_THAT(refused({"--job-name", "a b"}), Says("submit.may_hold", "job-name", "a b"));
  EXPECT_THAT(refused({"--job-name", "a\n#SBATCH --uid=0"}),
              Says("submit.may_hold", "job-name", "a\n#SBATCH --uid=0"));
  EXPECT_THAT(refused({"--partition", "$(x)"}), Says("submit.may_hold", "partition", "$(x)"));
  EXPECT_THAT(refused({"--output", "a'b"}), Says("submit.may_hold", "output", "a'b"));
  EXPECT_THAT(refused({"--time", "4h;"}), Says("submit.not_a_time", "4h;"));
  EXPECT_THAT(refused({"--nnodes", "0"}), Says("cli.not_whole", "--nnodes", 0));
  EXPECT_THAT(refused({"--nnodes", "1:2"}), Says("submit.nodes_of_slurm", "--nnodes", "1:2"));
  for (const char* time : {"foo", "4h", "1:2:3:4", "1-", "-1", "12:345", "1-2-3", "1:", "60x"}) {
    EXPECT_THAT(refused({"--time", time}), Says("submit.not_a_time", time)) << time;
  }
  for (const char* amount : {"1ZB", "G", "1.5G", "16GB", "-1", "16Gi"}) {
    EXPECT_THAT(refused({"--mem", amount}), Says("submit.not_memory", amount)) << amount;
  }
  for (const char* array : {"x", "1-", "0-3%", "1,,2", "0-3;"}) {
    EXPECT_THAT(refused({"--array", array}), Says("submit.not_an_array", array)) << array;
  }
  const std::vector<Arguments> too_early = {
      {"--time", "1"}, {"--time", "2:00"}, {"--time", "0-1", "--signal-before", "3600"}};
  for (const Arguments& options : too_early) {
    EXPECT_THAT(refused(options), Says("submit.signal_before_start")) << options.at(1);
  }
  EXPECT_THAT(refused({"--signal-before", "x"}), Says("cli.not_whole", "--signal-before", "x"));
  EXPECT_THAT(refused({"--hosts", "a"}), Says("submit.option_of_run", "--hosts"));
  EXPECT_THAT(refused({"--host", "a"}), Not(HasSubstr("--hosts")));
  EXPECT_THAT(refused({"--image", "x"}), Says("cli.unknown_option", "--image"));
  EXPECT_THAT(run_paceline({"submit", "slurm", "--dry-run"}).err,
              Says("cli.no_program", "paceline submit slurm"));
  EXPECT_THAT(run_paceline({"submit", "pbs"}).err, Says("submit.no_scheduler"));
}

class SubmitKubernetes : public testing::Test {};

// Checks, with a YAML parser, the fields that the published schemas of Secret, Service and Job
// (batch/v1) require, and those that an Indexed Job with a headless service needs.
constexpr const char* kCheck = R"(
import sys, yaml
secret, service, job = yaml.safe_load_all(open(sys.argv[1]))
assert (secret["apiVersion"], secret["kind"]) == ("v1", "Secret")
assert len(secret["stringData"]["secret"]) == 64
assert (service["apiVersion"], service["kind"]) == ("v1", "Service")
assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
assert service["spec"]["ports"] == [{"name": "store", "port": 29500}]
assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
spec = job["spec"]
assert spec["completions"] == spec["parallelism"] == 2 and spec["completionMode"] == "Indexed"
rule, = spec["podFailurePolicy"]["rules"]
assert rule == {"action": "Ignore", "onExitCodes": {"containerName": "paceline", "operator": "In", "values": [85]}}
pod = spec["template"]["spec"]
assert pod["restartPolicy"] == "Never" and pod["subdomain"] == service["metadata"]["name"]
labels = spec["template"]["metadata"]["labels"]
assert service["spec"]["selector"].items() <= labels.items()
assert pod["securityContext"] == {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}
container, = pod["containers"]
assert container["name"] == "paceline" and container["image"] == "registry/train:1"
assert all(isinstance(word, str) for word in container["command"] + container["args"])
assert container["args"][-1] == sys.argv[2].replace("$", "$$"), container["args"]
assert "--master-addr=job-0.job" in container["args"] and "--nnodes=2" in container["args"]
env = {entry["name"]: entry for entry in container["env"]}
assert "job-completion-index" in env["PET_NODE_RANK"]["valueFrom"]["fieldRef"]["fieldPath"]
assert container["resources"]["limits"] == {"cpu": "8", "memory": "16Gi"}
volumes = {volume["name"]: volume for volume in pod["volumes"]}
assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}
assert volumes["secret"]["secret"] == {"secretName": secret["metadata"]["name"], "defaultMode": 0o400}
mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
assert mounts == {"shm": "/dev/shm", "secret": "/etc/paceline"}
for one in (secret, service, job): assert one["metadata"]["namespace"] == "lab"
)";

TEST_F(SubmitKubernetes, writes_a_job_a_service_and_a_secret) {
  if (std::system("python3 -c 'import yaml' 2>/dev/null") != 0) {
    GTEST_SKIP() << "python3-yaml is not installed";
  }
  const FreshDirectory directory;
  const std::string odd = "$(HOSTNAME) ${X}: \"- &a\n'*";
  const Outcome outcome =
      submit("kubernetes",
             {"--job-name", "job", "--image", "registry/train:1", "--nnodes", "2",
              "--nproc-per-node", "4", "--threads-per-rank", "2", "--mem", "16Gi", "--namespace",
              "lab", "--shared-memory", "2Gi", "--run-as-user", "1000"},
             {"./train", odd});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string check = directory.write("check.py", kCheck);
  const std::string manifest = directory.write("job.yaml", outcome.out);
  const Outcome checked = PacelineProcess({check, manifest, odd}, {}, "/usr/bin/python3").wait();
  EXPECT_EQ(checked.exit_code, 0) << checked.err << outcome.out;
}

// The secret belongs to root. Without fsGroup, the user of the image could not read it.
TEST_F(SubmitKubernetes, lets_any_user_of_an_image_read_the_secret) {
  EXPECT_THAT(submit("kubernetes", {"--image", "x"}, {"./train"}).out,
              HasSubstr("      securityContext:\n        fsGroup: 1000\n      containers:\n"));
}

TEST_F(SubmitKubernetes, makes_a_new_secret_each_time) {
  const auto manifest = [] { return submit("kubernetes", {"--image", "x"}, {"./train"}).out; };
  EXPECT_NE(manifest(), manifest());
}

TEST_F(SubmitKubernetes, refuses_what_a_cluster_would_refuse) {
  const auto refused = [](Arguments options) {
    const Outcome outcome = submit("kubernetes", options, {"./train"});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  };
  EXPECT_THAT(refused({}), Says("submit.no_image"));
  EXPECT_THAT(
      refused({"--image", "x", "--nnodes", "1:2"}),
      AllOf(Says("submit.nodes_fixed", "--nnodes", "1:2"), Not(Says("submit.nodes_of_slurm"))));
  EXPECT_THAT(refused({"--image", "x", "--job-name", "My_Job"}),
              Says("submit.not_a_label", "--job-name", "My_Job"));
  EXPECT_THAT(refused({"--image", "x", "--job-name", "1job"}),
              Says("submit.must_begin_with_letter", "1job"));
  EXPECT_THAT(refused({"--image", "x", "--mem", "lots"}),
              Says("submit.not_an_amount", "--mem", "lots"));
  EXPECT_THAT(refused({"--image", "x", "--shared-memory", "Gi"}),
              Says("submit.not_an_amount", "--shared-memory", "Gi"));
  EXPECT_THAT(refused({"--image", "x", "--namespace", "-a"}),
              Says("submit.not_a_label", "--namespace", "-a"));
  const Outcome bytes = submit("kubernetes", {"--image", "x"}, {"./train", "\xff"});
  EXPECT_EQ(bytes.exit_code, 2);
  EXPECT_THAT(bytes.err, Says("submit.not_utf8"));
  EXPECT_THAT(run_paceline({"submit", "kubernetes", "--image", "x", "true"}).err,
              Says("submit.needs_dry_run"));
}

}  // namespace
}  // namespace paceline::launcher
