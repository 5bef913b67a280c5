// The conformance suite on ranks that are threads of this program: Paceline's own backend over
// every transport, and Gloo if it is built.

#include "tests/engine/collectives/conformance.h"

#include <gtest/gtest.h>

#include "paceline/engine/collectives/backends/backend_list.h"
#include "paceline/engine/transport/wire.h"

#include "tests/harness/thread_ranks.h"
#include "tests/harness/ucx_ranks.h"

namespace paceline {
namespace {

struct ConformanceSetting {
  std::string backend;
  TransportKind transport;
  int world;
  std::string over = {};  // the transports that UCX may use
  int tcp_streams = 1;
};

std::vector<ConformanceSetting> settings() {
  std::vector<ConformanceSetting> all = {
      {"paceline", TransportKind::kAuto, 1},     {"paceline", TransportKind::kLoopback, 2},
      {"paceline", TransportKind::kLoopback, 3}, {"paceline", TransportKind::kLoopback, 4},
      {"paceline", TransportKind::kLoopback, 5}, {"paceline", TransportKind::kLoopback, 8},
      {"paceline", TransportKind::kShm, 2},      {"paceline", TransportKind::kShm, 3},
      {"paceline", TransportKind::kShm, 4},      {"paceline", TransportKind::kTcp, 2},
      {"paceline", TransportKind::kTcp, 3},      {"paceline", TransportKind::kTcp, 4},
      {"paceline", TransportKind::kTcp, 5}};
  all.push_back({"paceline", TransportKind::kTcp, 3, "", 3});
  if (is_backend_available("gloo")) {
    for (const int world : {1, 2, 4, 5}) all.push_back({"gloo", TransportKind::kAuto, world});
    all.push_back({"gloo", TransportKind::kTcp, 3});
  }
  if (harness::can_use_ucx()) {
    for (const int world : {2, 4}) {
      all.push_back({"paceline", TransportKind::kUcx, world, "tcp"});
      if (harness::can_use_ucx_posix())
        all.push_back({"paceline", TransportKind::kUcx, world, "posix"});
    }
  }
  return all;
}

class ConformanceTest
    : public testing::TestWithParam<std::tuple<conformance::Check, ConformanceSetting>> {};

TEST_P(ConformanceTest, holds) {
  const auto& [check, setting] = GetParam();
  const harness::UcxTransports transports(setting.over.empty() ? "all" : setting.over);
  harness::run_ranks_ok(setting.world, check.run,
                        {.transport = setting.transport,
                         .backend = setting.backend,
                         .adjust = [&setting](int, GroupOptions& group) {
                           group.link.tcp_streams = setting.tcp_streams;
                         }});
}

std::string name_of(const testing::TestParamInfo<ConformanceTest::ParamType>& info) {
  const auto& [check, setting] = info.param;
  return setting.backend + "_" + std::string(name_of(setting.transport)) + setting.over + "_" +
         std::to_string(setting.world) +
         (setting.tcp_streams > 1 ? "_streams" + std::to_string(setting.tcp_streams) : "") + "_" +
         check.name;
}

INSTANTIATE_TEST_SUITE_P(Backends, ConformanceTest,
                         testing::Combine(testing::ValuesIn(conformance::checks().begin(),
                                                            conformance::checks().end()),
                                          testing::ValuesIn(settings())),
                         name_of);

}  // namespace
}  // namespace paceline
