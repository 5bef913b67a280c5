#include "paceline/training/tensor/c10d.h"

#include <atomic>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "paceline/engine/collectives/backends/backend_list.h"
#include "paceline/training/tensor/collectives.h"

#include "tests/engine/collectives/conformance.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

BackendInfo info_of(const std::string& name) {
  for (BackendInfo& info : list_backends()) {
    if (info.name == name) return std::move(info);
  }
  return {};
}

// If this LibTorch has no Gloo, the cases with c10d are skipped, with the reason.
std::vector<int> worlds_of_c10d() {
  return is_backend_available("c10d") ? std::vector{1, 2, 3, 4} : std::vector<int>();
}

class C10dConformanceTest : public testing::TestWithParam<std::tuple<conformance::Check, int>> {};

TEST_P(C10dConformanceTest, holds) {
  const auto& [check, world] = GetParam();
  harness::run_ranks_ok(world, check.run, {.backend = "c10d"});
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(C10dConformanceTest);
INSTANTIATE_TEST_SUITE_P(LibTorchsGloo, C10dConformanceTest,
                         testing::Combine(testing::ValuesIn(conformance::checks().begin(),
                                                            conformance::checks().end()),
                                          testing::ValuesIn(worlds_of_c10d())),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(C10d, carries_tensors_and_knows_its_name) {
  if (!is_backend_available("c10d")) GTEST_SKIP() << info_of("c10d").text;
  harness::run_ranks_ok(2,
                        [](ProcessGroup& group) {
                          EXPECT_EQ(group.backend(), "c10d");
                          EXPECT_EQ(std::string(group.transport()), "c10d");
                          const at::Tensor sum = at::full({3, 4}, group.rank() + 1.0);
                          all_reduce(group, sum);
                          EXPECT_TRUE(at::equal(sum, at::full({3, 4}, 3.0)));
                        },
                        {.backend = "c10d"});
}

// A program's own process group, which computes sums and counts its calls.
class CountingGroup : public C10dProcessGroup {
 public:
  CountingGroup(int rank, int size, std::atomic<int>& asked)
      : C10dProcessGroup(rank, size), asked_(asked) {}

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    EXPECT_EQ(options.reduceOp, c10d::ReduceOp::SUM);
    ++asked_;
    for (at::Tensor& tensor : tensors) tensor.mul_(getSize());  // all ranks pass the same values
    return c10::make_intrusive<Done>();
  }

 private:
  class Done : public c10d::Work {
   public:
    bool isCompleted() override { return true; }
    bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
  };
  std::atomic<int>& asked_;
};

TEST(C10d, runs_a_process_group_of_the_programs_own) {
  static std::atomic<int> asked = 0;
  register_c10d_backend("counting", [](const C10dMember& me) {
    EXPECT_GT(me.timeout.count(), 0);
    me.store->set("rank " + std::to_string(me.rank), std::vector<std::uint8_t>{7});
    EXPECT_EQ(me.store->get("rank " + std::to_string(1 - me.rank)), std::vector<std::uint8_t>{7});
    return c10::make_intrusive<CountingGroup>(me.rank, me.size, asked);
  });
  EXPECT_TRUE(is_backend_available("counting"));
  EXPECT_THROW(register_c10d_backend("counting", {}), Error);
  EXPECT_THROW(register_c10d_backend("paceline", {}), Error);
  harness::run_ranks_ok(2,
                        [](ProcessGroup& group) {
                          const at::Tensor mean = at::full({5}, 3.0f);
                          all_reduce(group, mean, ReduceOp::kMean);
                          EXPECT_TRUE(at::equal(mean, at::full({5}, 3.0f)));
                        },
                        {.backend = "counting"});
  EXPECT_EQ(asked, 2);
}

TEST(C10d, a_factory_that_fails_is_an_error_on_every_rank) {
  register_c10d_backend("broken", [](const C10dMember& me) {
    if (me.rank == 1) throw std::runtime_error("no device");
    return c10::intrusive_ptr<C10dProcessGroup>();
  });
  const auto results = harness::run_ranks(2, [](ProcessGroup&) {}, {.backend = "broken"});
  for (const auto& result : results) ASSERT_TRUE(result.error);
  EXPECT_NE(std::string(results[1].error->what()).find("no device"), std::string::npos)
      << results[1].error->what();
}

TEST(C10d, a_killed_rank_is_named_by_the_others) {
  if (!is_backend_available("c10d")) GTEST_SKIP() << info_of("c10d").text;
  const auto results = harness::run_process_ranks(3,
                                                  [](ProcessGroup& group) {
                                                    std::vector<float> data(1 << 20);
                                                    for (int i = 0;; ++i) {
                                                      if (group.rank() == 1 && i == 20)
                                                        ::raise(SIGKILL);
                                                      group.all_reduce(std::span(data));
                                                    }
                                                    return std::string();
                                                  },
                                                  {.backend = "c10d"});
  for (const std::size_t rank : {0u, 2u}) {
    EXPECT_TRUE(results[rank].threw);
    EXPECT_NE(results[rank].report.find("rank 1 ("), std::string::npos) << results[rank].report;
  }
}

}  // namespace
}  // namespace paceline
