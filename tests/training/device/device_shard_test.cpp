// Stage 3 of fully_shard() on simulated CUDA devices, with and without the backend nccl, compared
// with the CPU.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <type_traits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <c10/core/StreamGuard.h>
#include <torch/torch.h>

#include "paceline/training/optim/clip_gradients.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/activation_checkpoint.h"
#include "paceline/training/parallel/fully_shard.h"

#include "tests/harness/borrowed_group.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/standins.h"
#include "tests/harness/wait_until.h"
#include "tests/training/device/device_ranks.h"

namespace paceline {
namespace {

using harness::borrowed;
using Tensors = std::vector<at::Tensor>;

constexpr std::int64_t kWidth = 64, kDepth = 6;
constexpr std::size_t kUnitBytes = 4096;
// Each block is a unit; one of them also has all normalisations.
constexpr std::size_t kUnit = 6 * 1024 * sizeof(float);  // whole blocks of both ranks

// The first block's matrix is used once more at the end.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (std::int64_t i = 0; i < kDepth; ++i) {
      layers->push_back(torch::nn::Linear(kWidth, kWidth));
      norms->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    }
    register_module("layers", layers);
    register_module("norms", norms);
  }
  at::Tensor block(std::size_t i, const at::Tensor& x) {
    return x + torch::tanh(layers[i]->as<torch::nn::Linear>()->forward(
                   norms[i]->as<torch::nn::LayerNorm>()->forward(x)));
  }
  at::Tensor forward(at::Tensor x, bool with_checkpoints = false) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(kDepth); ++i) {
      if (with_checkpoints) {
        x = activation_checkpoint([this, i](const at::Tensor& in) { return block(i, in); }, x);
      } else {
        x = block(i, x);
      }
    }
    return torch::matmul(x, layers[0]->as<torch::nn::Linear>()->weight.t());  // tied
  }
  torch::nn::ModuleList layers, norms;
};
TORCH_MODULE(Net);

Net net_on(c10::Device device) {
  Net net = made_with_seed(11, [] { return Net(); });
  net->to(device);
  return net;
}

at::Tensor input_of(const ProcessGroup& group, int step) {
  return random_tensor({4, kWidth}, static_cast<std::uint64_t>(100 * step + group.rank()));
}

Tensors values_of(const Net& net) {
  Tensors values;
  for (const at::Tensor& one : net->parameters()) values.push_back(one.detach().cpu());
  return values;
}

void expect_close(const Tensors& found, const Tensors& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-4, 1e-5))
        << "tensor " << i << ", difference " << (found[i] - expected[i]).abs().max().item<float>();
}

// Expects an error with these words; its code depends on which rank fails first.
void expect_message(const std::vector<std::string>& words, const std::function<void()>& body) {
  try {
    body();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    for (const std::string& one : words)
      EXPECT_THAT(std::string(error.what()), testing::HasSubstr(one));
  }
}

// A stream of the program that follows the current one and is late.
c10::Stream late_stream(c10::Device device) {
  const c10::Stream late = own_stream(device);
  StreamEvent::after_current(device).block(late);
  simulated::Stream::of(device.index(), late.id()).push([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  });
  return late;
}

// With a small epsilon, AdamW would turn the noise in a gradient near zero into a large step.
template <class Optimizer>
auto options_of() {
  if constexpr (std::is_same_v<Optimizer, optim::AdamW>) {
    return optim::AdamWOptions{.lr = 0.01, .eps = 1e-3};
  } else if constexpr (std::is_same_v<Optimizer, optim::LAMB>) {
    return optim::LAMBOptions{.lr = 0.01};
  } else {
    return optim::SGDOptions{.lr = 0.01};
  }
}

// A divided model in training.
template <class Optimizer = optim::AdamW>
struct Trainee {
  Trainee(ProcessGroup& group, c10::Device where, int stage = 3)
      : group(group),
        device(where),
        net(net_on(where)),
        optimizer(net->parameters(), options_of<Optimizer>()),
        model(fully_shard(net, borrowed(group), optimizer,
                          {.stage = stage, .unit_bytes = kUnitBytes})) {}
  void step(int number) {
    optimizer.zero_grad();
    model.forward(input_of(group, number).to(device)).square().mean().backward();
    optimizer.step();
  }
  const at::Tensor& weight(std::size_t layer) {
    return net->layers[layer]->as<torch::nn::Linear>()->weight;
  }

  ProcessGroup& group;
  const c10::Device device;
  Net net;
  Optimizer optimizer;
  DistributedDataParallel<NetImpl> model;
};

class DeviceStage3 : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) harness::use_standins();
  }
  // Calls `body` for ranks in groups with or without NCCL.
  static void run(int ranks, const DeviceBody& body) {
    run_on_devices(ranks, body,
                   {.backend = GetParam() ? "cpu:paceline,cuda:nccl" : "cpu:paceline"});
  }

  // Expects the same parameters after steps on devices and on the CPU.
  template <class Optimizer = optim::AdamW, class Step>
  static void expect_parity(int ranks, const Step& step) {
    run(ranks, [&](ProcessGroup& group, c10::Device device) {
      const auto train = [&](c10::Device where, int stage) {
        Trainee<Optimizer> trainee(group, where, stage);
        for (int i = 0; i < 4; ++i) step(trainee, i);
        return values_of(trainee.net);
      };
      expect_close(train(device, 3), train(c10::kCPU, 0));
    });
  }
};

TEST_P(DeviceStage3, trains_as_on_the_cpu) {
  for (const int ranks : {2, 3}) {
    expect_parity(ranks, [](auto& trainee, int i) { trainee.step(i); });
    expect_parity<optim::SGD>(ranks, [](auto& trainee, int i) { trainee.step(i); });
  }
}

TEST_P(DeviceStage3, clips_accumulates_and_evaluates_as_on_the_cpu) {
  expect_parity(2, [](auto& trainee, int i) {
    trainee.optimizer.zero_grad();
    {
      const auto off = trainee.model.no_sync();
      trainee.model.forward(input_of(trainee.group, i).to(trainee.device)).sum().backward();
    }
    trainee.model.forward(input_of(trainee.group, 50 + i).to(trainee.device)).sum().backward();
    EXPECT_GT(optim::clip_grad_norm(trainee.optimizer, 0.1), 0);
    trainee.optimizer.step();
    const at::NoGradGuard no_grad;
    trainee.net->eval();
    const at::Tensor x = random_tensor({3, kWidth}, 9).to(trainee.device);
    const at::Tensor once = trainee.model.forward(x).cpu();
    EXPECT_TRUE(torch::allclose(trainee.net->forward(x).cpu(), once)) << "without the wrapper";
    trainee.net->train();
  });
}

TEST_P(DeviceStage3, recomputes_activations_as_on_the_cpu) {
  expect_parity(2, [](auto& trainee, int i) {
    trainee.optimizer.zero_grad();
    const at::Tensor input = input_of(trainee.group, i).to(trainee.device).requires_grad_();
    trainee.model.forward(input, true).square().mean().backward();
    trainee.optimizer.step();
  });
}

TEST_P(DeviceStage3, reads_parameters_on_several_streams) {
  expect_parity(2, [](auto& trainee, int i) {
    if (trainee.device.is_cpu()) return trainee.step(i);
    const c10::Stream side = own_stream(trainee.device);
    const c10::Stream own = current_stream_of(trainee.device);
    trainee.optimizer.zero_grad();
    const at::Tensor input = input_of(trainee.group, i).to(trainee.device);
    StreamEvent::after(own).block(side);
    at::Tensor loss;
    {
      const c10::StreamGuard guard(side);
      loss = trainee.model.forward(input).square().mean();
    }
    StreamEvent::after(side).block(own);
    loss.backward();
    trainee.optimizer.step();
  });
}

// The unit is late on rank 0: over NCCL because the device of rank 1 has not come to the gather,
// otherwise because the device of rank 0 has not begun to copy it from the host.
TEST_P(DeviceStage3, reads_a_unit_on_each_stream_after_it_has_arrived) {
  run(2, [](ProcessGroup& group, c10::Device device) {
    Trainee<> trainee(group, device);
    const at::NoGradGuard no_grad;
    const at::Tensor expected = trainee.weight(1).detach().cpu(),
                     first = torch::zeros_like(expected, device), second = first.clone();
    trainee.weight(2).detach().cpu();
    trainee.weight(3).detach().cpu();  // so the pool has no room for the first of these units
    std::optional<HeldStream> held;
    if (group.rank() == (GetParam() ? 1 : 0))
      held.emplace(side_stream(device, GetParam() ? SideStream::kGather : SideStream::kToDevice));
    const c10::Stream own = current_stream_of(device), side = own_stream(device);
    StreamEvent::after(own).block(side);
    first.copy_(trainee.weight(1));
    {
      const c10::StreamGuard guard(side);
      second.copy_(trainee.weight(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    if (group.rank() == 0) {
      for (const c10::Stream& stream : {own, side})
        EXPECT_FALSE(simulated::Stream::of(device.index(), stream.id()).is_idle());
    }
    if (!GetParam()) held.reset();
    group.barrier();
    held.reset();
    StreamEvent::after(side).block(own);
    EXPECT_TRUE(torch::equal(first.cpu(), expected));
    EXPECT_TRUE(torch::equal(second.cpu(), expected));
    group.barrier();
  });
}

// The pool has room for two of these units, so the later reads need the memory of the first one.
TEST_P(DeviceStage3, uses_memory_again_after_every_stream_that_reads_it) {
  run(2, [](ProcessGroup& group, c10::Device device) {
    Trainee<> trainee(group, device);
    const at::NoGradGuard no_grad;
    const at::Tensor expected = trainee.weight(1).detach().cpu();
    const at::Tensor found = torch::zeros({kWidth, kWidth}, device), others = found.clone();
    const c10::Stream late = late_stream(device);
    {
      const c10::StreamGuard guard(late);
      found.copy_(trainee.weight(1));
    }
    for (const std::size_t other : {2, 3, 4, 5}) others.copy_(trainee.weight(other));
    StreamEvent::after(late).block(current_stream_of(device));
    EXPECT_TRUE(torch::equal(found.cpu(), expected));
    group.barrier();
  });
}

// At the step a gather is under way that nothing has read yet, because it was started in advance.
TEST_P(DeviceStage3, changes_parts_after_the_gathers_that_read_them) {
  run(2, [](ProcessGroup& group, c10::Device device) {
    Trainee<> trainee(group, device);
    trainee.step(0);
    trainee.optimizer.zero_grad();
    trainee.model.forward(input_of(group, 1).to(device)).square().mean().backward();
    const auto late = side_stream(device, GetParam() ? SideStream::kGather : SideStream::kToDevice);
    const auto has_ended = std::make_shared<std::atomic<bool>>(false);
    {
      const at::NoGradGuard no_grad;
      torch::cat({trainee.weight(1), trainee.weight(3)});  // the pool has no room for others
      simulated::Stream::of(device.index(), late.id()).push([has_ended] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        *has_ended = true;
      });
      torch::empty_like(trainee.weight(1)).copy_(trainee.weight(1));  // requests another unit
    }
    trainee.optimizer.step();
    simulated::Stream::of(device.index(), current_stream_of(device).id()).drain();
    EXPECT_TRUE(*has_ended) << "the step did not wait for the gather";
    group.barrier();
  });
}

TEST_P(DeviceStage3, does_not_make_the_host_wait_for_the_device) {
  run(2, [](ProcessGroup& group, c10::Device device) {
    Trainee<> trainee(group, device);
    const at::Tensor input = input_of(group, 0).to(device);
    const auto step = [&] {
      trainee.optimizer.zero_grad();
      trainee.model.forward(input).square().mean().backward();
      trainee.optimizer.step();
    };
    step();
    step();
    group.barrier();
    simulated::reset_counts();
    group.barrier();
    for (int i = 0; i < 3; ++i) step();
    group.barrier();
    EXPECT_EQ(simulated::counts().synchronisations, 0U);
    EXPECT_GT(simulated::counts().kernels, 0U);
    group.barrier();
  });
}

// The pool has room for two units and for four units of `unit_bytes`: half of this model.
TEST_P(DeviceStage3, needs_memory_for_parts_and_a_few_units) {
  run(2, [](ProcessGroup& group, c10::Device device) {
    const int index = device.index();
    const std::size_t parts = kDepth * kUnit / 2, pool = 2 * kUnit + 4 * kUnitBytes, page = 4096;
    const std::size_t before = simulated::live_bytes(index);
    Trainee<optim::SGD> trainee(group, device);
    const std::size_t state = trainee.optimizer.num_state_bytes();
    const std::size_t most_kept = parts + pool + state + kDepth * page;
    const auto has_released = [&] { return simulated::live_bytes(index) - before <= most_kept; };
    EXPECT_TRUE(harness::wait_until(has_released, Deadline::after(std::chrono::seconds(10))))
        << simulated::live_bytes(index) - before << " bytes, at most " << most_kept << " expected";
    const at::Tensor input = input_of(group, 0).to(device);
    trainee.model.forward(input);  // allocates the buckets of gradients
    std::size_t most = 0;
    for (int i = 0; i < 3; ++i) {
      const at::NoGradGuard no_grad;
      simulated::reset_peak(index);
      const std::size_t at_start = simulated::live_bytes(index);
      trainee.model.forward(input);
      most = std::max(most, simulated::peak_bytes(index) - at_start);
    }
    EXPECT_LE(most, 10 * page) << "a pass allocated memory for parameters";
    group.barrier();
  });
}

TEST_P(DeviceStage3, gives_all_parameters_to_code_that_asks_for_them) {
  run(2, [](ProcessGroup& group, c10::Device device) {
    Trainee<> trainee(group, device);
    const Tensors expected = values_of(net_on(c10::kCPU));
    {
      const auto whole = trainee.optimizer.whole_parameters();
      if (group.rank() == 0) expect_close(values_of(trainee.net), expected);
      const auto again = trainee.optimizer.whole_parameters();
      EXPECT_NE(trainee.net->parameters()[0].data_ptr(), nullptr);
    }
    expect_close(values_of(trainee.net), expected);
    trainee.step(0);
    group.barrier();
  });
}

// One stream writes and another one keeps the values; one of them is late.
TEST_P(DeviceStage3, keeps_writes_that_were_announced_and_refuses_others) {
  run(2, [](ProcessGroup& group, c10::Device device) {
    Trainee<> trainee(group, device);
    for (const bool is_written_late : {true, false}) {
      const at::NoGradGuard no_grad;
      auto writing = trainee.optimizer.writable_parameters();
      const c10::Stream own = current_stream_of(device), late = late_stream(device);
      const double value = is_written_late ? 0.5 : 0.25;
      {
        const c10::StreamGuard guard(is_written_late ? late : own);
        for (const at::Tensor& one : trainee.net->parameters()) one.detach().fill_(value);
      }
      {
        const c10::StreamGuard guard(is_written_late ? own : late);
        writing.reset();
      }
      StreamEvent::after(late).block(own);
      for (const at::Tensor& one : values_of(trainee.net))
        EXPECT_TRUE(torch::equal(one, torch::full_like(one, value)));
    }
    trainee.step(0);
    {
      const at::NoGradGuard no_grad;
      trainee.net->parameters()[3].fill_(2);
    }
    expect_message({"has written to the unit of parameter", "optimizer.writable_parameters()"},
                   [&] {
                     trainee.step(1);
                     trainee.step(2);
                   });
  });
}

TEST_P(DeviceStage3, without_memory_is_an_error_on_every_rank) {
  run(2, [](ProcessGroup& group, c10::Device device) {
    const int index = device.index();
    Net net = net_on(device);
    optim::SGD optimizer(net->parameters());
    // The optimizer has no memory for the pool, but for everything before it.
    if (group.rank() == 1) simulated::fail_allocations_above(index, 30000);
    expect_message(
        {"cuda:2 has no memory for the pool of gathered parameters", "use more ranks"}, [&] {
          fully_shard(net, borrowed(group), optimizer, {.stage = 3, .unit_bytes = kUnitBytes});
        });
    simulated::fail_allocations_above(index, 0);
  });
}

// An operation that reads more units than the pool has room for takes further memory.
TEST_P(DeviceStage3, without_memory_for_an_operation_is_an_error_on_every_rank) {
  run(2, [](ProcessGroup& group, c10::Device device) {
    const int index = device.index();
    Trainee<> trainee(group, device);
    const auto flattened = [&] {
      Tensors rows;
      for (const at::Tensor& one : trainee.net->parameters())
        rows.push_back(one.detach().view({-1}));
      return torch::cat(rows);
    };
    Tensors expected;
    for (const at::Tensor& one : net_on(c10::kCPU)->parameters())
      expected.push_back(one.detach().view({-1}));
    EXPECT_TRUE(torch::equal(flattened().cpu(), torch::cat(expected)));
    trainee.net->parameters()[0].detach().sum();  // releases what the pool has no room for
    if (group.rank() == 1) simulated::fail_allocations_above(index, 12000);
    Tensors some;
    for (const at::Tensor& one : trainee.net->parameters()) some.push_back(one.detach());
    at::_foreach_norm(some);
    simulated::fail_allocations_above(index, 0);
    expect_message({"cuda:2 has no memory for the unit of parameter", "use more ranks"},
                   [&] { trainee.optimizer.step(); });
  });
}

TEST_P(DeviceStage3, reads_in_another_order_are_an_error_on_every_rank) {
  run(2, [](ProcessGroup& group, c10::Device device) {
    Trainee<> trainee(group, device);
    const at::NoGradGuard no_grad;
    const std::size_t layer = group.rank() == 0 ? 1 : 2;
    trainee.weight(layer).sum();
    expect_message({"this rank gave parameter layers." + std::to_string(layer) + ".bias"},
                   [&] { trainee.model.forward(input_of(group, 0).to(device)); });
  });
}

// LAMB needs norms of whole parameters, and no rank has whole parameters.
TEST_P(DeviceStage3, refuses_an_optimizer_that_needs_norms_in_every_stage) {
  for (const int stage : {1, 2, 3}) {
    run(2, [stage](ProcessGroup& group, c10::Device device) {
      Trainee<optim::LAMB> trainee(group, device, stage);
      expect_error(ErrorCode::kInvalid, {"lamb: ", "use adamw, or stage 0 of fully_shard()"},
                   [&] { trainee.step(0); });
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, DeviceStage3, testing::Bool(),
                         [](const auto& info) { return info.param ? "nccl" : "paceline"; });

}  // namespace
}  // namespace paceline
