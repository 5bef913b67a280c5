// A checkpoint to which each rank saves its part: the tensors are the same however they are
// divided, over shared memory and TCP, on one host and on several.

#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/train/checkpoints/checkpointer.h"
#include "paceline/training/train/run_parts.h"

#include "tests/harness/fresh_directory.h"
#include "tests/harness/load_checkpoint.h"
#include "tests/harness/process_ranks.h"

namespace paceline::train {
namespace {

std::shared_ptr<ProcessGroup> borrowed(ProcessGroup& group) {
  return {&group, [](auto*) {}};
}

at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed));
}

// Odd sizes, a parameter in another memory order, one that is a transposed view, one without
// elements, a scalar, and a buffer that differs between ranks.
struct OddNet : torch::nn::Module {
  explicit OddNet(int rank) {
    add("filters", random({5, 3, 3, 2}, 1).contiguous(at::MemoryFormat::ChannelsLast));
    add("turned", random({7, 301}, 2).t());
    add("empty", at::empty({0, 4}));
    add("scalar", random({}, 3));
    add("large", random({129, 517}, 4));
    register_buffer("mean", random({9}, 10 + static_cast<std::uint64_t>(rank)));
    register_buffer("every_other", random({20}, 5).slice(0, 0, 20, 2));
    register_buffer("count", at::tensor(rank, at::kLong));
  }
  void add(const std::string& name, const at::Tensor& value) {
    values.push_back(register_parameter(name, value));
  }
  std::vector<at::Tensor> values;
};

struct OneNumber : torch::nn::Module {
  explicit OneNumber(int) { values.push_back(register_parameter("only", random({1}, 1))); }
  std::vector<at::Tensor> values;
};

struct SharedSetting {
  int world = 2;
  bool sharded = false;
  bool node_shared = false;  // one copy of the parameters, with a sharded optimizer
  std::string optimizer = "adam";
  TransportKind transport = TransportKind::kAuto;
  std::vector<int> host_of{};  // the host of each rank; empty: all on one host
};

std::unique_ptr<optim::Optimizer> make(const std::string& name,
                                       const std::vector<at::Tensor>& parameters) {
  if (name == "adam") return std::make_unique<optim::Adam>(parameters, optim::AdamOptions{});
  // Plain SGD has no state.
  return std::make_unique<optim::SGD>(parameters, optim::SGDOptions{.lr = 0.1});
}

using Tensors = std::map<std::string, std::string>;  // name: bytes

// The tensors of a job after two steps and two saves. `adjust` may change a rank's model before the
// saves.
template <class Net>
Tensors tensors_of(const SharedSetting& setting,
                   const std::function<void(int rank, Net& net)>& adjust = {}) {
  const FreshDirectory folder;
  harness::RanksOptions options{.transport = setting.transport};
  if (!setting.host_of.empty()) {
    options.adjust = [&](int rank, GroupOptions& group) {
      group.link.host = "h" + std::to_string(setting.host_of[static_cast<std::size_t>(rank)]);
    };
  }
  const auto results = harness::run_process_ranks(
      setting.world,
      [&](ProcessGroup& group) {
        torch::manual_seed(static_cast<std::uint64_t>(group.rank()));
        Net net(group.rank());
        const auto optimizer = make(setting.optimizer, net.values);
        if (setting.sharded)
          core_of(*optimizer).shard(borrowed(group), {.node_shared = setting.node_shared});
        Checkpointer checkpointer(borrowed(group),
                                  {.folder = folder.path(), .compare_replicas = !adjust});
        for (int step = 1; step <= 2; ++step) {
          for (std::size_t i = 0; i < net.values.size(); ++i)
            net.values[i].mutable_grad() = random(net.values[i].sizes(), 50 * step + i);
          optimizer->step();
          if (adjust) adjust(group.rank(), net);
          EXPECT_TRUE(checkpointer.save({.step = step}, net, *optimizer));
        }
        EXPECT_TRUE(checkpointer.finish());
        return std::string();
      },
      options);
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
  const auto loaded = harness::load(CheckpointDirectory(folder.path(), {.read_only = true}), 2);
  Tensors tensors;
  for (const auto& [name, bytes] : loaded.tensors) tensors[name] = to_string(bytes);
  tensors.erase("random_states");  // has one row for each rank
  EXPECT_GT(tensors.size(), 3U);
  return tensors;
}

template <class Net>
void expect_same_tensors(SharedSetting setting) {
  const Tensors shared = tensors_of<Net>(setting);
  EXPECT_TRUE(shared == tensors_of<Net>({.world = 1, .optimizer = setting.optimizer}))
      << setting.world << " ranks, " << setting.optimizer << (setting.sharded ? ", sharded" : "");
  setting.transport = TransportKind::kTcp;
  setting.host_of = {};
  EXPECT_TRUE(shared == tensors_of<Net>(setting))
      << setting.world << " ranks, " << setting.optimizer << (setting.sharded ? ", sharded" : "");
}

TEST(SharedCheckpoint, has_the_tensors_of_one_rank) {
  for (const int world : {2, 3}) expect_same_tensors<OddNet>({.world = world});
}

TEST(SharedCheckpoint, of_a_sharded_optimizer_has_the_tensors_of_one_rank) {
  for (const int world : {2, 3, 5}) expect_same_tensors<OddNet>({.world = world, .sharded = true});
}

TEST(SharedCheckpoint, of_one_copy_of_the_parameters_has_the_bytes_of_many) {
  for (const int world : {2, 3}) {
    EXPECT_TRUE(tensors_of<OddNet>({.world = world, .sharded = true, .node_shared = true}) ==
                tensors_of<OddNet>({.world = world, .sharded = true}));
  }
}

// 2 steps by 2 ranks and 2 more by 3 ranks with one copy must equal 4 steps.
TEST(SharedCheckpoint, one_copy_of_the_parameters_goes_on_from_any) {
  at::set_num_threads(1);  // the ranks are forked, which LibTorch's threads would not survive
  const auto take_steps = [](OddNet& net, optim::Optimizer& optimizer, int first, int last) {
    for (int step = first; step <= last; ++step) {
      for (std::size_t i = 0; i < net.values.size(); ++i)
        net.values[i].mutable_grad() = random(net.values[i].sizes(), 50 * step + i);
      optimizer.step();
    }
  };
  OddNet straight(0);
  take_steps(straight, *make("adam", straight.values), 1, 4);
  const FreshDirectory folder;
  const auto run = [&](int world, bool node_shared, int first, int last) {
    const auto results = harness::run_process_ranks(world, [&](ProcessGroup& group) {
      OddNet net(group.rank());
      const auto optimizer = make("adam", net.values);
      core_of(*optimizer).shard(borrowed(group), {.node_shared = node_shared});
      Checkpointer checkpointer(borrowed(group), {.folder = folder.path(), .resume = first > 1});
      EXPECT_EQ(checkpointer.begin(net, *optimizer, 0).has_value(), first > 1);
      take_steps(net, *optimizer, first, last);
      EXPECT_TRUE(checkpointer.save({.step = last}, net, *optimizer));
      EXPECT_TRUE(checkpointer.finish());
      if (last < 4) return std::string();
      for (std::size_t i = 0; i < net.values.size(); ++i)
        EXPECT_TRUE(at::equal(net.values[i], straight.values[i])) << i;
      return std::string();
    });
    for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
  };
  run(2, false, 1, 2);
  run(3, true, 3, 3);
  run(2, true, 4, 4);
}

TEST(SharedCheckpoint, more_ranks_than_tensors) {
  for (const bool sharded : {false, true})
    expect_same_tensors<OneNumber>({.world = 7, .sharded = sharded});
}

// With two hosts, some owners of the optimizer's state are not on rank 0's host.
TEST(SharedCheckpoint, over_several_hosts) {
  for (const bool sharded : {false, true})
    expect_same_tensors<OddNet>({.world = 4, .sharded = sharded, .host_of = {0, 0, 1, 1}});
}

TEST(SharedCheckpoint, of_ranks_that_differ_is_rank_0s) {
  const auto spoil = [](int rank, OddNet& net) {
    const at::NoGradGuard no_grad;
    if (rank == 1) net.values[4].fill_(7);
  };
  EXPECT_TRUE(tensors_of<OddNet>({}, spoil) == tensors_of<OddNet>({}));
}

}  // namespace
}  // namespace paceline::train
