// The memory that fully_shard() takes on a machine, counted in pages, and its behaviour when there
// is too little.

#include <algorithm>
#include <fstream>
#include <functional>
#include <numeric>
#include <span>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/fully_shard.h"
#include "paceline/training/tensor/tensor_memory.h"

#include "tests/harness/borrowed_group.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/memory_pages.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/small_cgroup.h"
#include "tests/harness/tiny_dev_shm.h"

namespace paceline {
namespace {

using harness::borrowed;

torch::nn::Sequential square_layers(std::int64_t layers, std::int64_t side) {
  torch::manual_seed(4);
  torch::nn::Sequential net;
  for (std::int64_t i = 0; i < layers; ++i)
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(side, side).bias(false)));
  return net;
}

std::span<const std::byte> bytes_in(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

// The bytes of these tensors that take physical memory, in any process.
std::size_t pages_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::span<const std::byte>> ranges;
  for (const auto& tensor : tensors) ranges.push_back(bytes_in(tensor));
  return harness::resident_bytes(ranges);
}

// Weights exist once for all ranks, in both views; each element of the optimizer's state exists on
// one rank.
TEST(ShardMemory, the_machine_has_twelve_bytes_a_parameter_for_any_number_of_ranks) {
  constexpr std::int64_t kLayers = 4, kSide = 1024, kParameters = kLayers * kSide * kSide;
  for (const int ranks : {1, 2, 8}) {
    const auto results = harness::run_process_ranks(ranks, [](ProcessGroup& group) {
      at::set_num_threads(1);
      auto net = square_layers(kLayers, kSide);
      optim::Adam adam(net->parameters());
      auto model = fully_shard(net, borrowed(group), adam);
      for (int step = 0; step < 2; ++step) {
        adam.zero_grad();
        model->forward(at::ones({2, kSide})).square().mean().backward();
        adam.step();
      }
      group.barrier();
      std::vector<at::Tensor> state;
      for (const optim::StatePart& part : core_of(adam).state_parts())
        state.push_back(part.elements);
      std::size_t mine = pages_of(state);
      if (core_of(adam).shares_parameters()) {
        const auto bytes_of_view = [&](const auto& place_of) {
          std::vector<const std::byte*> places;
          for (std::size_t i = 0; i < adam.parameters().size(); ++i) places.push_back(place_of(i));
          const auto [first, last] = std::ranges::minmax(places);
          return harness::proportional_bytes(first, last + 1);
        };
        mine += bytes_of_view([&](std::size_t i) {
          return static_cast<const std::byte*>(core_of(adam).elements(i, {0, 1}).data_ptr());
        });
        mine += bytes_of_view([&](std::size_t i) { return bytes_in(adam.parameters()[i]).data(); });
      } else {
        mine += pages_of(adam.parameters());
      }
      return std::to_string(all_reduce_value(group, static_cast<std::int64_t>(mine)));
    });
    for (const auto& result : results) {
      ASSERT_EQ(result.exit_code, 0) << result.report;
      const double bytes_per_parameter = std::stod(result.report) / kParameters;
      EXPECT_GT(bytes_per_parameter, 12 * 0.99) << ranks;
      EXPECT_LT(bytes_per_parameter, 12 * 1.03) << ranks;
    }
  }
}

// The copy and the gradients are in unnamed memory files, which do not belong to that file system.
TEST(ShardMemory, a_tiny_dev_shm_does_not_matter) {
  const auto train = [](const std::function<void(int rank)>& before) {
    const auto results = harness::run_process_ranks(
        2,
        [](ProcessGroup& group) {
          at::set_num_threads(1);
          const SymmetricTensors symmetric(group);
          auto net = square_layers(4, 512);
          optim::Adam adam(net->parameters());
          auto model = fully_shard(net, borrowed(group), adam);
          for (int step = 0; step < 2; ++step) {
            adam.zero_grad();
            const at::Tensor input = at::full({2, 512}, 1.0 + group.rank());
            model->forward(input).square().mean().backward();
            adam.step();
          }
          std::stringstream maps;
          maps << std::ifstream("/proc/self/maps").rdbuf();
          EXPECT_NE(maps.str().find("/memfd:paceline"), std::string::npos);
          EXPECT_EQ(maps.str().find("/dev/shm/"), std::string::npos);
          std::string sums;
          for (const auto& parameter : net->parameters())
            sums += fmt::format("{:a} ", parameter.sum().item<double>());
          return sums;
        },
        {.transport = TransportKind::kShm, .before_connect = before});
    std::vector<std::string> sums;
    for (const auto& result : results) {
      EXPECT_EQ(result.exit_code, 0) << result.report;
      sums.push_back(result.report);
    }
    return sums;
  };
  const auto in_tiny = train([](int) {
    // If /dev/shm cannot be made tiny, the check that nothing of it is used must suffice.
    const bool is_tiny = harness::make_dev_shm_tiny();
    EXPECT_TRUE(is_tiny || geteuid() != 0 || getenv("CI") != nullptr);
  });
  EXPECT_EQ(in_tiny, train({}));
}

// Sanitizers need extra memory for each byte.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The ranks' own weights fit within the limit, and so does Adam, whose state takes no memory before
// the first step. With the shared copy in addition, the ranks would exceed the limit.
TEST(ShardMemory, a_copy_that_a_small_cgroup_has_no_room_for_is_an_error_before_the_steps) {
  constexpr std::int64_t kLayers = 3, kSide = 2048;
  constexpr std::size_t kWeights = kLayers * kSide * kSide * sizeof(float);  // 48 MiB
  const harness::SmallCgroup small(2 * kWeights + (32 << 20));
  if (!small.is_made()) GTEST_SKIP() << "no cgroup with a limit on memory can be made here";
  const auto results = harness::run_process_ranks(2, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    EXPECT_TRUE(small.enter());
    group.barrier();
    auto net = square_layers(kLayers, kSide);
    optim::Adam adam(net->parameters());
    group.barrier();
    expect_error(ErrorCode::kSystem,
                 {"one copy", std::to_string(kWeights) + " bytes", "left", "below the limit of"},
                 [&] { fully_shard(net, borrowed(group), adam); });
    group.barrier();
    return std::string();
  });
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
}
#endif

// Every process is its own host. Its mapping has the half that it keeps, and a few whole units.
TEST(ShardMemory, hosts_that_divide_parameters_have_few_units_whole) {
  constexpr std::int64_t kLayers = 12, kSide = 512;  // each weight is a unit of 1 MB
  const auto results = harness::run_process_ranks(
      2,
      [](ProcessGroup& group) {
        at::set_num_threads(1);
        auto net = square_layers(kLayers, kSide);
        optim::Adam adam(net->parameters());
        auto model = fully_shard(net, borrowed(group), adam, {.shard_across_hosts = true});
        constexpr auto kUnit = static_cast<std::size_t>(kSide * kSide) * sizeof(float);
        constexpr std::size_t kKept = kLayers * kUnit / 2;
        for (int step = 0; step < 3; ++step) {
          adam.zero_grad();
          model->forward(at::ones({2, kSide})).square().mean().backward();
          EXPECT_EQ(pages_of(net->parameters()), kKept + 4 * kUnit / 2);
          adam.step();
          EXPECT_EQ(pages_of(net->parameters()), kKept);
        }
        const auto whole = adam.whole_parameters();
        EXPECT_EQ(pages_of(net->parameters()), 2 * kKept);
        std::vector<double> sums;
        for (const auto& parameter : net->parameters()) {
          const auto* const values = static_cast<const float*>(parameter.data_ptr());
          sums.push_back(std::accumulate(values, values + parameter.numel(), 0.0));
        }
        for (const double sum : sums) {
          EXPECT_NE(sum, 0);
          EXPECT_EQ(all_reduce_value(group, sum, ReduceOp::kMax), sum);
        }
        return std::string();
      },
      {.adjust = [](int rank, GroupOptions& group) { group.link.host = std::to_string(rank); }});
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
}

}  // namespace
}  // namespace paceline
