// `paceline bench rpc` as people type it, and what happens if a contestant misbehaves.

#include "apps/bench/call_session.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/harness/fresh_directory.h"
#include "tests/harness/says.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::bench {
namespace {

using harness::Says;
using launcher::Outcome;
using launcher::run_paceline;
using testing::HasSubstr;
using testing::Not;

Outcome bench_rpc(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"bench", "rpc"});
  return run_paceline(std::move(arguments));
}

nlohmann::json json_in(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return nlohmann::json::parse(text.str());
}

// Runs every measure, way and size.
TEST(CallSessionTest, measures_calls_beside_a_raw_socket) {
  const FreshDirectory directory;
  const Outcome outcome = bench_rpc(
      {"--sizes", "64,64K", "--peer", "socket", "--rounds", "1", "--json", directory.file("j")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              Says("bench.heading_of_calls", "blocking", "one host", "64 B", "1 round"));
  EXPECT_THAT(outcome.out, Says("bench.heading_of_calls", "callers", "TCP", "64 B", "1 round"));
  EXPECT_THAT(outcome.err, Says("bench.peer_has_one_caller", "A raw socket"));
  EXPECT_THAT(outcome.err, Not(Says("bench.peer_left_out")));
  const auto json = json_in(directory.file("j"));
  EXPECT_THAT(json["command"], HasSubstr("paceline bench rpc --sizes 64,64K"));
  std::map<std::string, std::vector<std::string>> figures;  // by way, measure and size
  for (const auto& row : json["rows"]) {
    EXPECT_GT(row["median"].get<double>(), 0) << row;
    EXPECT_EQ(row["rounds"].size(), 1u);
    EXPECT_EQ(row.contains("paceline_to_it"), row["peer"] != "paceline") << row;
    const std::string point = row["way"].get<std::string>() + " " +
                              row["measure"].get<std::string>() + " " +
                              std::to_string(row["bytes"].get<int>());
    figures[point].push_back(row["peer"].get<std::string>() + " " + row["unit"].get<std::string>());
  }
  for (const std::string way : {"unix", "tcp"}) {
    EXPECT_THAT(figures[way + " blocking 64"],
                testing::ElementsAre("paceline µs", "socket µs", "paceline µs", "socket µs"));
    EXPECT_THAT(figures[way + " pipelined 64"],
                testing::ElementsAre("paceline thousand/s", "socket thousand/s"));
    EXPECT_THAT(figures[way + " one_way 64"],
                testing::ElementsAre("paceline thousand/s", "socket thousand/s"));
    EXPECT_THAT(figures[way + " callers 64"], testing::SizeIs(7));
    EXPECT_THAT(figures[way + " blocking 65536"], testing::SizeIs(9));
    EXPECT_THAT(figures[way + " blocking 65536"], testing::Contains("memcpy GB/s"));
    EXPECT_FALSE(figures.contains(way + " pipelined 65536"));
  }
}

// A library that was not built is reported as missing; all others must work.
TEST(CallSessionTest, every_peer_takes_part_or_says_what_it_needs) {
  const Outcome outcome = bench_rpc({"--sizes", "64,64K", "--peer", "all", "--rounds", "1",
                                     "--measure", "blocking,pipelined", "--transport", "unix"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Not(Says("bench.peer_left_out")));
  EXPECT_THAT(outcome.err, Not(HasSubstr("signal")));
  for (const auto& [peer, package] : {std::pair{"grpc", "libgrpc++-dev"},
                                      {"capnp", "libcapnp-dev"},
                                      {"torch", "python3-torch"}}) {
    EXPECT_TRUE(outcome.out.find(std::string(peer) + ": ") != std::string::npos ||
                outcome.err.find(package) != std::string::npos)
        << peer << ": " << outcome.out << outcome.err;
  }
}

TEST(CallSessionTest, busy_cores_are_named_in_the_report) {
  const Outcome outcome = bench_rpc({"--sizes", "64", "--measure", "blocking", "--transport",
                                     "unix", "--rounds", "1", "--busy", "--json", "-"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["busy"], true);
  EXPECT_EQ(json["rows"].size(), 2u);
  EXPECT_THAT(outcome.err,
              Says("bench.heading_of_busy_calls", "blocking", "one host", "64 B", "1 round"));
}

TEST(CallSessionTest, measurements_before_an_interruption_are_written) {
  const FreshDirectory directory;
  launcher::PacelineProcess process(std::vector<std::string>{
      "bench", "rpc", "--sizes", "64,128", "--measure", "one_way", "--transport", "unix",
      "--rounds", "3", "--json", directory.file("j")});
  process.wait_for_lines("messages, thousand/s", 1);
  process.send(SIGINT);
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_THAT(outcome.err, Says("bench.interrupted", "1 of 2 points"));
  EXPECT_EQ(json_in(directory.file("j"))["rows"].size(), 1u);
}

// Installs test programs in place of the contestants.
class CallContestantsTest : public testing::Test {
 protected:
  CallContestantsTest() {
    put(PACELINE_CALL_CONTESTANT, "bench-rpc-paceline");
    options_.sizes = {64};
    options_.ways = {CallTransport::kUnix};
    options_.measures = {CallMeasure::kBlocking};
    options_.rounds = 1;
    options_.seconds = 0.05;
    options_.programs = directory_.path();
  }
  void put(const std::string& program, const std::string& name) {
    std::filesystem::create_symlink(program, directory_.file(name));
  }
  FreshDirectory directory_;
  CallSessionOptions options_;
};

TEST_F(CallContestantsTest, a_missing_peer_is_named_with_its_package) {
  options_.peers = {"grpc", "capnp"};
  const CallReport report = CallSession(options_).run();
  EXPECT_THAT(report.missing, testing::ElementsAre(HasSubstr("apt-get install libgrpc++-dev"),
                                                   HasSubstr("apt-get install libcapnp-dev")));
  EXPECT_EQ(report.rows.size(), 2u);
}

TEST_F(CallContestantsTest, a_peer_that_does_not_start_is_missing) {
  put("/bin/false", "bench-rpc-grpc");
  options_.peers = {"grpc"};
  const CallReport report = CallSession(options_).run();
  EXPECT_THAT(report.missing, testing::ElementsAre(Says("bench.peer_did_not_start", "gRPC")));
  EXPECT_EQ(report.rows.size(), 2u);
}

// The faulty contestant implements collectives only, so it fails when a call is measured.
TEST_F(CallContestantsTest, a_peer_that_fails_is_left_out_from_there_on) {
  put(PACELINE_FAULTY_CONTESTANT, "bench-rpc-grpc");
  options_.peers = {"grpc"};
  options_.measures = {CallMeasure::kBlocking, CallMeasure::kPipelined};
  const CallReport report = CallSession(options_).run();
  EXPECT_THAT(report.notes,
              testing::Contains(Says("bench.peer_left_out", "gRPC", "blocking of 64 B over unix")));
  EXPECT_EQ(report.rows.size(), 3u);
}

struct RpcRefusal {
  std::vector<std::string> arguments;
  harness::SaysMatcher says;
};
class BenchRpcRefuses : public testing::TestWithParam<RpcRefusal> {};

TEST_P(BenchRpcRefuses, with_exit_code_2) {
  const Outcome outcome = bench_rpc(GetParam().arguments);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, GetParam().says);
  EXPECT_EQ(outcome.out, "");
}

INSTANTIATE_TEST_SUITE_P(
    Arguments, BenchRpcRefuses,
    testing::Values(
        RpcRefusal{{"--peer", "gprc"},
                   Says("option.not_one_of", "--peer", "gprc", "socket, grpc, capnp, torch")},
        RpcRefusal{{"--peer", "gprc"}, Says("option.did_you_mean", "grpc")},
        RpcRefusal{{"--peer", "gloo"}, Says("option.not_one_of", "--peer", "gloo")},
        RpcRefusal{{"--peer", "paceline"}, Says("option.not_one_of", "--peer", "paceline")},
        RpcRefusal{{"--peer", "socket,"}, Says("option.not_one_of", "--peer", "")},
        RpcRefusal{{"--sizes", "8"}, Says("bench.message_size", "8 B", "16 B", "64 MiB")},
        RpcRefusal{{"--sizes", "128M"}, Says("bench.message_size", "128 MiB")},
        RpcRefusal{{"--sizes", "4X"}, Says("cli.value_refused", "--sizes", "4X", "a size")},
        RpcRefusal{{"--sizes", ""}, Says("cli.value_empty", "--sizes")},
        RpcRefusal{{"--transport", "shm"},
                   Says("option.not_one_of", "--transport", "shm", "unix, tcp")},
        RpcRefusal{{"--measure", "piplined"}, Says("option.did_you_mean", "pipelined")},
        RpcRefusal{{"--python", "/no/python"}, Says("bench.python_refused", "/no/python")},
        RpcRefusal{{"--spin", "-1"}, Says("cli.not_whole", "--spin", -1, 0)},
        RpcRefusal{{"--rounds", "0"}, Says("cli.not_whole", "--rounds", 0, 1)},
        RpcRefusal{{"--timeout", "x"}, Says("cli.not_whole", "--timeout", "x", 1)},
        RpcRefusal{{"--json", "/no/such/folder/f"},
                   Says("option.file_refused", "--json", "/no/such/folder/f", "No such file")},
        RpcRefusal{{"--np", "2"}, Says("cli.unknown_option", "--np")},
        RpcRefusal{{"--bussy"}, Says("cli.option_meant", "--bussy", "--busy")},
        RpcRefusal{{"all_reduce"}, Says("cli.not_expected", "all_reduce")}));

TEST(BenchRpcWord, comes_first) {
  const Outcome outcome = run_paceline({"bench", "all_reduce,rpc"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, Says("bench.rpc_is_measured_alone"));
}

TEST(BenchRpcWord, ranks_of_a_launcher_do_not_measure_each_for_itself) {
  const Outcome outcome =
      run_paceline({"bench", "rpc", "--busy"}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err,
              Says("bench.ranks_of_a_launcher", 0, 2, "RANK and WORLD_SIZE in the environment",
                   "workers", "paceline bench rpc --busy"));
}

}  // namespace
}  // namespace paceline::bench
