// build_once: a host has the parameters once, bitwise equal to those of the ordinary construction.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/collectives/memory/one_copy.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/fully_shard.h"

#include "tests/harness/borrowed_group.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/says.h"
#include "tests/harness/shared_counter.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

using harness::borrowed;
using harness::run_process_ranks;
using harness::Says;
using harness::SharedCounter;
using testing::HasSubstr;

struct TiedNet : torch::nn::Module {
  explicit TiedNet(std::int64_t width = 64) {
    first = register_module("first", torch::nn::Linear(width, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    second = register_module("second", torch::nn::Linear(width, width));
    tied = register_parameter("tied", first->weight);
  }
  at::Tensor forward(const at::Tensor& x) {
    return second(norm(torch::tanh(at::linear(first(x), tied))));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor tied;
};

std::shared_ptr<TiedNet> make_tied_net() {
  at::set_num_threads(1);
  torch::manual_seed(5);
  return std::make_shared<TiedNet>();
}

harness::RanksOptions on_several_hosts(int ranks_per_host) {
  return {.adjust = [ranks_per_host](int rank, GroupOptions& group) {
    group.link.host = "h" + std::to_string(rank / ranks_per_host);
  }};
}

void expect_all_end_well(const std::vector<harness::ProcessResult>& results) {
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
}

void train_tied_net(DistributedDataParallel<TiedNet>& model, optim::Optimizer& optimizer,
                    int rank) {
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const auto seed = static_cast<std::uint64_t>(100 * step + rank);
    const at::Tensor input = at::randn({8, 64}, at::detail::createCPUGenerator(seed));
    model->forward(input).square().mean().backward();
    optimizer.step();
  }
}

// Compares a model that each rank built with one that was built once: the parameters, a training,
// and the next random numbers must be the same.
std::string compare_with_ordinary(ProcessGroup& group) {
  const auto ordinary = make_tied_net();
  const at::Tensor expected_next = at::rand({4});
  const auto built = build_once(borrowed(group), make_tied_net);
  EXPECT_TRUE(at::equal(at::rand({4}), expected_next));
  EXPECT_TRUE(built->first->weight.is_same(built->tied));
  const auto compare = [&] {
    const auto names = ordinary->named_parameters();
    EXPECT_EQ(names.size(), built->named_parameters().size());
    for (const auto& item : built->named_parameters())
      EXPECT_TRUE(at::equal(item.value(), names[item.key()])) << item.key();
  };
  compare();
  optim::Adam adam(ordinary->parameters(), {.lr = 0.01});
  auto model = fully_shard(ordinary, borrowed(group), adam, {.stage = 2});
  optim::Adam of_built(built->parameters(), {.lr = 0.01});
  auto model_of_built = fully_shard(built, borrowed(group), of_built);
  train_tied_net(model, adam, group.rank());
  train_tied_net(model_of_built, of_built, group.rank());
  compare();
  group.barrier();
  return {};
}

TEST(BuildOnceProcesses, has_the_bits_of_the_ordinary_construction) {
  for (const int ranks : {1, 2, 3})
    expect_all_end_well(run_process_ranks(ranks, compare_with_ordinary));
  expect_all_end_well(run_process_ranks(4, compare_with_ordinary, on_several_hosts(2)));
}

TEST(BuildOnceProcesses, all_hosts_have_the_values_of_rank_0) {
  const auto results = run_process_ranks(
      4,
      [](ProcessGroup& group) {
        const auto built = build_once(borrowed(group), [&] {
          const auto net = make_tied_net();
          const at::NoGradGuard no_grad;
          net->first->weight.fill_(group.rank() + 1.0);
          return net;
        });
        EXPECT_EQ(built->first->weight.min().item<float>(), 1.0F);
        EXPECT_EQ(built->first->weight.max().item<float>(), 1.0F);
        group.barrier();
        return std::string();
      },
      on_several_hosts(2));
  expect_all_end_well(results);
}

// Ranks share one copy of the parameters, and no two ranks build at the same time.
TEST(BuildOnceProcesses, a_host_has_one_copy_and_one_rank_that_builds) {
  constexpr int kRanks = 4;
  SharedCounter began;
  SharedCounter ended;
  const auto results = run_process_ranks(kRanks, [&](ProcessGroup& group) {
    const auto built = build_once(borrowed(group), [&] {
      // All ranks before this one have built and dropped their own copy, and no other rank has
      // begun.
      const auto before = static_cast<std::uint32_t>(group.rank());
      EXPECT_EQ(began.count(), before);
      EXPECT_EQ(ended.count(), before);
      began.add();
      auto net = make_tied_net();
      ended.add();
      return net;
    });
    EXPECT_EQ(ended.count(), static_cast<std::uint32_t>(kRanks));
    // The parameters are in the host's copy; buffers are not.
    optim::Adam adam(built->parameters(), {.lr = 0.01});
    EXPECT_TRUE(OneCopy::holds(built->first->weight.data_ptr()));
    EXPECT_FALSE(OneCopy::holds(built->norm->running_mean.data_ptr()));
    group.barrier();
    return std::string();
  });
  expect_all_end_well(results);
}

TEST(BuildOnceProcesses, without_stage_3_it_is_an_error) {
  expect_all_end_well(run_process_ranks(2, [](ProcessGroup& group) {
    const auto built = build_once(borrowed(group), make_tied_net);
    expect_error(ErrorCode::kInvalid, {"(build_once)", "stage 3"},
                 [&] { DistributedDataParallel model(built, borrowed(group)); });
    optim::Adam adam(built->parameters(), {});
    expect_error(ErrorCode::kInvalid, {"stage 3"},
                 [&] { fully_shard(built, borrowed(group), adam, {.stage = 2}); });
    group.barrier();
    return std::string();
  }));
}

TEST(BuildOnceProcesses, a_rank_that_cannot_build_is_told_to_the_ranks_of_all_hosts) {
  for (const int ranks_per_host : {2, 4}) {
    for (int bad = 0; bad < 4; ++bad) {
      const auto results = run_process_ranks(
          4,
          [&](ProcessGroup& group) {
            build_once(borrowed(group), [&] {
              if (group.rank() == bad) throw std::runtime_error("no such file: vocab.json");
              return make_tied_net();
            });
            return std::string();
          },
          on_several_hosts(ranks_per_host));
      for (const auto& result : results) {
        EXPECT_TRUE(result.threw);
        EXPECT_THAT(result.report, HasSubstr(fmt::format("rank {}", bad)));
        EXPECT_THAT(result.report, Says("build_once.failed", "no such file: vocab.json"));
      }
    }
  }
}

TEST(BuildOnceProcesses, ranks_with_different_modules_are_told_the_difference) {
  const auto results = run_process_ranks(2, [&](ProcessGroup& group) {
    build_once(borrowed(group),
               [&] { return std::make_shared<TiedNet>(group.rank() == 1 ? 32 : 64); });
    return std::string();
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.threw);
    EXPECT_THAT(result.report, HasSubstr("tied\tFloat [32, 32]"));
    EXPECT_THAT(result.report, HasSubstr("tied\tFloat [64, 64]"));
  }
}

}  // namespace
}  // namespace paceline
