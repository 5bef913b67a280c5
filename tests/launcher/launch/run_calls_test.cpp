// How `paceline top` and `paceline explain` show workers that call each other.

#include <csignal>
#include <map>
#include <memory>
#include <tuple>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/harness/says.h"
#include "tests/harness/wait_until.h"
#include "tests/launcher/job_timeline/trace_reader.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::HasSubstr;

class RunCalls : public testing::Test {
 protected:
  std::unique_ptr<PacelineProcess> start(const std::string& what, const std::string& id,
                                         const std::string& roles = "trainer=1,observer=1") {
    auto job = std::make_unique<PacelineProcess>(
        std::vector<std::string>{"run", "--all-ranks", "--log-dir", logs_.path(), "--rdzv-id", id,
                                 "--roles", roles, "--until", "trainer", CALLING_PROGRAM, what});
    observer_ = std::stoi(job->wait_for_lines("[observer0] serving ", 1).front());
    job->wait_for_lines("[trainer0] calling", 1);
    return job;
  }
  // Waits until `explain` prints the message.
  testing::AssertionResult explains(const harness::SaysMatcher& message) {
    std::string said;
    const auto says = [&] {
      said = run_paceline({"explain", logs_.path()}).out;
      return testing::Value(said, message);
    };
    if (harness::wait_until(says, Deadline::after(20s))) return testing::AssertionSuccess();
    return testing::AssertionFailure()
           << testing::DescribeMatcher<std::string>(message) << ", not in: " << said;
  }
  static void end(PacelineProcess& job) {
    job.send(SIGTERM);
    EXPECT_EQ(job.wait().exit_code, 143);
  }

  const FreshDirectory logs_;
  pid_t observer_ = -1;
};

TEST_F(RunCalls, top_shows_calls_by_worker_and_method) {
  const auto job = start("load", "top-of-calls");
  const Outcome top = run_paceline({"top", "--json", "--once", "top-of-calls"});
  const auto json = nlohmann::json::parse(top.out);
  ASSERT_EQ(json["workers"].size(), 2u) << top.out;
  for (const auto& [index, name, side] :
       {std::tuple(0, "trainer0", "calls"), std::tuple(1, "observer0", "serves")}) {
    const auto& worker = json["workers"][index];
    EXPECT_EQ(worker["worker"], name);
    const auto& methods = worker["methods"];
    ASSERT_EQ(methods.size(), 1u) << top.out;
    EXPECT_EQ(methods[0]["side"], side);
    EXPECT_EQ(methods[0]["method"], "ask");
    EXPECT_GT(methods[0]["per_second"].get<double>(), 0);
    EXPECT_GT(methods[0]["p50_seconds"].get<double>(), 0);
    EXPECT_GE(methods[0]["p99_seconds"].get<double>(), methods[0]["p50_seconds"].get<double>());
    EXPECT_LE(methods[0]["under_way"].get<int>(), 1);
  }
  const std::string table = run_paceline({"top", "--once", "top-of-calls"}).out;
  EXPECT_THAT(table, HasSubstr("CALLS/S"));
  EXPECT_THAT(table, Says("top.worker", "observer0", 1, "0 references", "0 objects"));
  end(*job);
}

TEST_F(RunCalls, the_timeline_has_calls_and_their_handlers) {
  const std::string output = logs_.file("trace.json");
  const Outcome outcome =
      run_paceline({"run", "--timeline", output, "--roles", "trainer=1,observer=1", "--until",
                    "trainer", CALLING_PROGRAM, "call", "1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  std::map<int, std::string> workers;  // the worker at the other end of the last call, by rank
  for (const nlohmann::json& span : strict_spans(output)) {
    EXPECT_EQ(span["name"], "ask");
    workers[span["pid"].get<int>()] = span["args"]["worker"].get<std::string>();
  }
  EXPECT_EQ(workers, (std::map<int, std::string>{{0, "observer0"}, {1, "trainer0"}}));
}

TEST_F(RunCalls, explain_names_the_handler_that_a_call_waits_for) {
  const auto job = start("hold", "hold");
  EXPECT_TRUE(explains(Says("explain.call_waits", "trainer0 (rank 0)")));
  EXPECT_TRUE(explains(Says("explain.handler_runs", "hold", "observer0 (rank 1)")));
  const auto json = nlohmann::json::parse(run_paceline({"explain", "--json", logs_.path()}).out);
  ASSERT_EQ(json["calls"].size(), 1u);
  EXPECT_EQ(json["calls"][0]["state"], "running");
  EXPECT_EQ(json["calls"][0]["callee"], "observer0");
  job->send(SIGTERM);
  const Outcome outcome = job->wait();
  EXPECT_EQ(outcome.exit_code, 143);
}

TEST_F(RunCalls, explain_tells_a_call_in_the_queue_from_the_one_that_runs) {
  const auto job = start("hold", "queue", "trainer=2,observer=1");
  job->wait_for_lines("[trainer1] calling", 1);
  EXPECT_TRUE(explains(Says("explain.handler_runs", "hold", "observer0 (rank 2)")));
  EXPECT_TRUE(explains(Says("explain.call_queued", "hold", "observer0 (rank 2)")));
  end(*job);
}

TEST_F(RunCalls, explain_names_a_callee_that_is_frozen) {
  const auto job = start("load", "frozen");
  kill(observer_, SIGSTOP);
  EXPECT_TRUE(explains(Says("explain.callee_stopped", "ask", "observer0 (rank 1)", "observer0")));
  kill(observer_, SIGCONT);
  end(*job);
}

TEST_F(RunCalls, a_job_that_is_stopped_while_a_call_waits_says_so) {
  const auto job = start("hold", "stopped");
  EXPECT_TRUE(explains(Says("explain.handler_runs", "hold", "observer0 (rank 1)")));
  const auto waits_long = [&] {
    const auto json = nlohmann::json::parse(run_paceline({"explain", "--json", logs_.path()}).out);
    return json["waited_seconds"].get<double>() > 1;
  };
  ASSERT_TRUE(harness::wait_until(waits_long, Deadline::after(20s)));
  job->send(SIGTERM);
  EXPECT_THAT(job->wait().err, Says("explain.handler_runs", "hold", "observer0 (rank 1)"));
  EXPECT_THAT(run_paceline({"explain", logs_.path()}).out,
              Says("explain.handler_runs", "hold", "observer0 (rank 1)"));
}

}  // namespace
}  // namespace paceline::launcher
