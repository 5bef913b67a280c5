// The rank that failed first is found even if the hosts' reports take different times to arrive.

#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/harness/says.h"
#include "tests/launcher/launch/network_hosts.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::AllOf;
using testing::Not;

// Forwards both directions of a connection; each piece arrives 0.3 s late.
constexpr const char* kSlowConnection = R"(
import os, subprocess, sys, threading, time, queue
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def carry(source, sink):
    pieces = queue.Queue()
    def read():
        while True:
            piece = os.read(source, 65536)
            pieces.put((time.monotonic() + 0.3, piece))
            if not piece:
                return
    threading.Thread(target=read, daemon=True).start()
    while True:
        when, piece = pieces.get()
        time.sleep(max(0, when - time.monotonic()))
        if not piece:
            return os.close(sink)
        while piece:
            piece = piece[os.write(sink, piece):]
threading.Thread(target=carry, args=(0, child.stdin.fileno()), daemon=True).start()
carry(child.stdout.fileno(), 1)
sys.exit(child.wait())
)";

class RunHostsOrder : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = NetworkHosts::unavailable();
    if (!reason.empty()) GTEST_SKIP() << reason;
    if (access("/usr/bin/python3", X_OK) != 0) GTEST_SKIP() << "python3 is not installed";
    hosts.emplace(2);
  }

  // The connection to the second host is slow. Its rank 1 fails as soon as both ranks have started,
  // and rank 0 fails half a delay later, so rank 0's report arrives first.
  Outcome run(const std::vector<std::string>& options) {
    const std::string slow = hosts->directory().write("slow.py", kSlowConnection);
    const std::string go = hosts->directory().file("go");
    std::vector<std::string> all = {"run", "--hosts", hosts->list(1), "--ssh-command",
                                    hosts->ssh_after("[ $1 = 10.77.0.2 ] && exec python3 " + slow +
                                                     " " + hosts->ssh() + " \"$@\"")};
    all.insert(all.end(), options.begin(), options.end());
    all.insert(all.end(), {"sh", "-c",
                           "[ $RANK = 1 ] && { sleep 1; touch " + go + "; exit 4; }; until [ -e " +
                               go + " ]; do sleep 0.01; done; sleep 0.15; exit 3"});
    return run_paceline(all);
  }

  std::optional<NetworkHosts> hosts;
};

TEST_F(RunHostsOrder, the_rank_that_failed_first_is_named_though_its_report_arrives_last) {
  const Outcome outcome = run({});
  EXPECT_EQ(outcome.exit_code, 4) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(Says("run.first_failure", 1, "exit code 4"),
                                 Not(Says("run.first_failure", 0))));
}

TEST_F(RunHostsOrder, so_it_is_in_a_job_that_goes_on) {
  const Outcome outcome = run({"--max-restarts", "1"});
  EXPECT_NE(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(Says("run.first_failure", 1, "exit code 4"),
                    Says("run.restarts", 1, 1, 1, "rank 1 on host 10.77.0.2: exit code 4")));
}

}  // namespace
}  // namespace paceline::launcher
