// DistributedDataParallel and the fused optimizers on simulated CUDA devices, compared with the
// CPU.

#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/StreamGuard.h>
#include <torch/torch.h>

#include "paceline/training/optim/exponential_moving_average.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/communication_hook.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/parallel/join.h"
#include "paceline/training/parallel/reducer/reducer.h"
#include "paceline/training/parallel/sync_batch_norm.h"

#include "tests/harness/expect_error.h"
#include "tests/training/device/device_ranks.h"

namespace paceline {
namespace {

struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::shared_ptr<ProcessGroup> sync = nullptr) {
    first = register_module("first", torch::nn::Linear(8, 64));
    norm = sync ? torch::nn::AnyModule(SyncBatchNorm(torch::nn::BatchNormOptions(64), sync))
                : torch::nn::AnyModule(torch::nn::BatchNorm1d(64));
    register_module("norm", norm.ptr());
    second = register_module("second", torch::nn::Linear(64, 16));
    unused = register_module("unused", torch::nn::Linear(16, 4));
  }
  at::Tensor forward(const at::Tensor& x, bool uses_all = true) {
    const at::Tensor y = second(torch::relu(norm.forward(first(x))));
    return uses_all ? unused(y) : y;
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, unused{nullptr};
  torch::nn::AnyModule norm;
};
TORCH_MODULE(Net);

std::shared_ptr<ProcessGroup> shared(ProcessGroup& group) {
  return {&group, [](ProcessGroup*) {}};
}

using Step =
    std::function<void(DistributedDataParallel<NetImpl>& model, const at::Tensor& input, int step)>;

void plain_step(DistributedDataParallel<NetImpl>& model, const at::Tensor& input, int /*step*/) {
  model.forward(input).square().mean().backward();
}

// The ranks are threads that share LibTorch's generator, so one of them at a time makes its module.
Net net_of(const std::shared_ptr<ProcessGroup>& sync) {
  return made_with_seed(3, [&] { return Net(sync); });
}

// The input of a step.
at::Tensor input_of(const ProcessGroup& group, int step) {
  const auto seed = static_cast<std::uint64_t>(100 * step + group.rank());
  return random_tensor({6, 8}, seed);
}

struct Trained {
  std::vector<at::Tensor> values;  // parameters and buffers, on the CPU
};

// Trains for a few steps on `device`.
Trained train(ProcessGroup& group, c10::Device device, const Step& step, bool with_sync = false,
              const DistributedDataParallelOptions& options = {}, int num_steps = 4) {
  Net net = net_of(with_sync ? shared(group) : nullptr);
  net->to(device);
  DistributedDataParallel model(net.ptr(), shared(group), options);
  // Not Adam: it would turn the noise in the gradient of a bias before a normalisation into large
  // steps.
  optim::SGD optimizer(model.parameters(), {.lr = 0.05, .momentum = 0.9});
  for (int i = 0; i < num_steps; ++i) {
    const at::Tensor input = input_of(group, i).to(device);
    model.zero_grad();
    step(model, input, i);
    optimizer.step();
  }
  Trained trained;
  for (const at::Tensor& tensor : model.parameters())
    trained.values.push_back(tensor.detach().cpu());
  for (const at::Tensor& tensor : model.buffers()) trained.values.push_back(tensor.cpu());
  return trained;
}

// Expects the same values after training on the CPU and on devices.
void expect_parity(const Step& step, bool with_sync = false,
                   const DistributedDataParallelOptions& options = {}, double tolerance = 1e-5) {
  run_on_devices(2, [&](ProcessGroup& group, c10::Device device) {
    const Trained host = train(group, c10::kCPU, step, with_sync, options);
    const Trained on_device = train(group, device, step, with_sync, options);
    for (std::size_t i = 0; i < host.values.size(); ++i) {
      EXPECT_TRUE(torch::allclose(host.values[i], on_device.values[i], 1e-4, tolerance))
          << "tensor " << i << ": " << host.values[i] << " and " << on_device.values[i];
    }
  });
}

DistributedDataParallelOptions small_buckets() {
  DistributedDataParallelOptions options;
  options.buckets.first_bytes = 300;
  options.buckets.cap_bytes = 300;
  return options;
}

TEST(DeviceDataParallel, trains_as_on_the_cpu) { expect_parity(plain_step); }

TEST(DeviceDataParallel, trains_with_many_buckets) {
  expect_parity(plain_step, false, small_buckets());
}

TEST(DeviceDataParallel, accumulates_without_synchronisation) {
  expect_parity([](auto& model, const at::Tensor& input, int) {
    {
      const auto off = model.no_sync();
      model.forward(input * 0.5).square().mean().backward();
    }
    model.forward(input).square().mean().backward();
  });
}

TEST(DeviceDataParallel, averages_parameters_that_one_rank_or_none_has_used) {
  expect_parity([](auto& model, const at::Tensor& input, int step) {
    const bool uses_all = step == 1 ? model.reducer().group().rank() == 0 : step != 2;
    model.forward(input, uses_all).square().mean().backward();
  });
}

TEST(DeviceDataParallel, normalises_over_all_ranks) { expect_parity(plain_step, true); }

TEST(DeviceDataParallel, normalises_no_values_without_a_change_of_the_statistics) {
  for (const bool has_momentum : {true, false}) {
    run_on_devices(2, [&](ProcessGroup& group, c10::Device device) {
      torch::nn::BatchNormOptions options(4);
      if (!has_momentum) options.momentum(c10::nullopt);
      SyncBatchNorm norm(options, shared(group));
      norm->to(device);
      norm(torch::empty({0, 4}, device));
      EXPECT_TRUE(torch::equal(norm->running_mean.cpu(), torch::zeros({4})));
      EXPECT_TRUE(torch::equal(norm->running_var.cpu(), torch::ones({4})));
      EXPECT_EQ(norm->num_batches_tracked.item<int>(), 0);
    });
  }
}

TEST(DeviceDataParallel, compresses_gradients) {
  expect_parity(
      [](auto& model, const at::Tensor& input, int step) {
        if (step == 0) model.register_comm_hook(std::make_shared<CompressHook>(at::kBFloat16));
        model.forward(input).square().mean().backward();
      },
      false, {}, 2e-3);
}

Step with_hook(const std::function<std::shared_ptr<CommunicationHook>()>& make) {
  return [make](auto& model, const at::Tensor& input, int step) {
    if (step == 0) model.register_comm_hook(make());
    model.forward(input).square().mean().backward();
  };
}

TEST(DeviceDataParallel, sends_low_rank_factors_of_gradients) {
  for (const bool warm_start : {true, false}) {
    const PowerSGDOptions options{.rank = 2, .start_step = 1, .warm_start = warm_start};
    expect_parity(with_hook([&] { return std::make_shared<PowerSGDHook>(options); }), false, {},
                  2e-3);
  }
}

TEST(DeviceDataParallel, sends_the_largest_elements_of_gradients) {
  expect_parity(with_hook([] { return std::make_shared<TopKHook>(0.3); }), false, small_buckets(),
                2e-3);
}

TEST(DeviceDataParallel, does_not_make_the_host_wait_with_hooks) {
  run_on_devices(2, [](ProcessGroup& group, c10::Device device) {
    for (const bool low_rank : {true, false}) {
      Net net = net_of(nullptr);
      net->to(device);
      DistributedDataParallel model(net.ptr(), shared(group));
      if (low_rank) {
        model.register_comm_hook(
            std::make_shared<PowerSGDHook>(PowerSGDOptions{.rank = 2, .start_step = 0}));
      } else {
        model.register_comm_hook(std::make_shared<TopKHook>(0.3));
      }
      const at::Tensor input = input_of(group, 0).to(device);
      for (int i = 0; i < 2; ++i) plain_step(model, input, i);
      group.barrier();
      simulated::reset_counts();
      group.barrier();
      for (int i = 0; i < 3; ++i) plain_step(model, input, i);
      group.barrier();
      EXPECT_EQ(simulated::counts().synchronisations, 0U) << low_rank;
      group.barrier();
    }
  });
}

TEST(DeviceDataParallel, reads_gradients_that_several_streams_have_made) {
  expect_parity([](auto& model, const at::Tensor& input, int) {
    if (input.is_cpu()) return plain_step(model, input, 0);
    const c10::Stream side = side_stream(input.device(), SideStream::kToDevice);
    const c10::Stream own = current_stream_of(input.device());
    StreamEvent::after(own).block(side);
    at::Tensor loss;
    {
      const c10::StreamGuard guard(side);
      loss = model.forward(input).square().mean();
    }
    StreamEvent::after(side).block(own);
    loss.backward();
  });
}

// The gradients of the first layer are made on another stream than those of the last one, because
// its parameters are trained only from the first forward pass on. So the reduction, which begins
// with the first layer's gradients, must wait for both streams. The kernels of the last layer's
// stream write their results late.
TEST(DeviceDataParallel, reduces_a_bucket_after_every_stream_of_its_gradients) {
  run_on_devices(2, [](ProcessGroup& group, c10::Device device) {
    const auto train = [&](c10::Device where) {
      torch::nn::Sequential net = made_with_seed(6, [] {
        return torch::nn::Sequential(torch::nn::Linear(8, 8), torch::nn::Tanh(),
                                     torch::nn::Linear(8, 4));
      });
      net->to(where);
      const auto set_trained = [&](bool is_trained) {
        for (const at::Tensor& one : net[0]->parameters()) one.set_requires_grad(is_trained);
      };
      set_trained(false);
      DistributedDataParallel model(net.ptr(), shared(group));
      set_trained(true);
      optim::SGD optimizer(model.parameters(), {.lr = 0.05});
      for (int step = 0; step < 4; ++step) {
        const at::Tensor input = input_of(group, step).to(where);
        model.zero_grad();
        if (where.is_cpu()) {
          model.forward(input).square().mean().backward();
        } else {
          const c10::Stream first = own_stream(where), last = current_stream_of(where);
          StreamEvent::after(last).block(first);
          at::Tensor loss;
          {
            const c10::StreamGuard guard(first);
            loss = model.forward(input).square().mean();
          }
          StreamEvent::after(first).block(last);
          auto& late = simulated::Stream::of(last.device_index(), last.id());
          late.set_delays({.share = 1, .most = std::chrono::milliseconds(40)});
          loss.backward();
          late.set_delays({});
        }
        optimizer.step();
      }
      std::vector<at::Tensor> values;
      for (const at::Tensor& one : model.parameters()) values.push_back(one.detach().cpu());
      return values;
    };
    const auto host = train(c10::kCPU), on_device = train(device);
    for (std::size_t i = 0; i < host.size(); ++i)
      EXPECT_TRUE(torch::allclose(host[i], on_device[i], 1e-4, 1e-5)) << "tensor " << i;
  });
}

TEST(DeviceDataParallel, does_not_make_the_host_wait_for_the_device) {
  run_on_devices(2, [](ProcessGroup& group, c10::Device device) {
    torch::manual_seed(3);
    Net net;
    net->to(device);
    DistributedDataParallel model(net.ptr(), shared(group));
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
    const at::Tensor input = torch::randn({6, 8}).to(device);
    const auto step = [&] {
      model.zero_grad();
      model.forward(input).square().mean().backward();
      optimizer.step();
    };
    step();
    step();
    group.barrier();
    simulated::reset_counts();
    group.barrier();
    for (int i = 0; i < 3; ++i) step();
    group.barrier();
    EXPECT_EQ(simulated::counts().synchronisations, 0U);
    RecordProperty("host_synchronisations", std::to_string(simulated::counts().synchronisations));
    EXPECT_GT(simulated::counts().kernels, 0U);
  });
}

TEST(DeviceDataParallel, trains_with_more_inputs_on_one_rank) {
  run_on_devices(2, [](ProcessGroup& group, c10::Device device) {
    const auto train = [&](c10::Device where) {
      Net net = net_of(nullptr);
      net->to(where);
      DistributedDataParallel model(net.ptr(), shared(group));
      optim::SGD optimizer(model.parameters(), {.lr = 0.05});
      JoinedStep step([&] {
        optimizer.step();
        model.zero_grad();
      });
      join(model, step, [&] {
        for (int i = 0; i < 2 + 2 * group.rank(); ++i) {
          model.forward(input_of(group, i).to(where)).square().mean().backward();
          step();
        }
      });
      std::vector<at::Tensor> values;
      for (const at::Tensor& one : model.parameters()) values.push_back(one.detach().cpu());
      return values;
    };
    const auto host = train(c10::kCPU), on_device = train(device);
    for (std::size_t i = 0; i < host.size(); ++i)
      EXPECT_TRUE(torch::allclose(host[i], on_device[i], 1e-4, 1e-5)) << "tensor " << i;
  });
}

// The gradients are in the buckets, so there is one copy of them.
TEST(DeviceDataParallel, needs_the_memory_of_the_gradients_beside_the_model) {
  run_on_devices(2, [](ProcessGroup& group, c10::Device device) {
    torch::nn::Sequential net = made_with_seed(7, [] {
      const auto layer = [] { return torch::nn::Linear(torch::nn::LinearOptions(256, 256)); };
      return torch::nn::Sequential(layer(), layer(), layer(), layer());
    });
    net->to(device);
    const std::size_t bytes = 4 * 257 * 256 * sizeof(float);
    const std::size_t before = simulated::live_bytes(device.index());
    DistributedDataParallel model(net.ptr(), shared(group));
    for (int step = 0; step < 3; ++step) {
      model.zero_grad();
      model.forward(random_tensor({2, 256}, 1).to(device)).square().mean().backward();
    }
    group.barrier();
    const std::size_t beside = simulated::live_bytes(device.index()) - before;
    RecordProperty("bytes_beside_the_model", std::to_string(beside));
    RecordProperty("bytes_of_gradients", std::to_string(bytes));
    EXPECT_LT(beside, bytes + bytes / 4) << "bytes of the gradients: " << bytes;
  });
}

TEST(DeviceDataParallel, of_a_module_half_on_the_cpu_is_refused) {
  run_on_devices(2, [](ProcessGroup& group, c10::Device device) {
    Net net;
    net->second->to(device);
    expect_error(ErrorCode::kInvalid,
                 {"parameter first.weight is on cpu", "call module->to(device)"},
                 [&] { DistributedDataParallel model(net.ptr(), shared(group)); });
    if (group.rank() == 1) net->to(device);
    expect_error(ErrorCode::kInvalid,
                 {"the ranks do not have the same model", "on cuda' on rank 1"},
                 [&] { DistributedDataParallel model(net.ptr(), shared(group)); });
  });
}

TEST(DeviceDataParallel, without_memory_for_a_bucket_is_an_error_on_every_rank) {
  run_on_devices(2, [](ProcessGroup& group, c10::Device device) {
    Net net;
    net->to(device);
    DistributedDataParallel model(net.ptr(), shared(group));
    const at::Tensor loss = model.forward(torch::randn({6, 8}).to(device)).square().mean();
    loss.item<float>();
    const int index = device.index();
    // Enough for the backward pass of this small model, but not for its bucket.
    const std::size_t room = group.rank() == 1 ? 20 * 4096 : std::size_t{1} << 30;
    std::vector<at::Tensor> ballast;
    simulated::set_memory_limit(index, simulated::live_bytes(index) + room);
    const auto begin = std::chrono::steady_clock::now();
    try {
      if (group.rank() == 1) simulated::fail_allocations_above(index, 4096);
      loss.backward();
      FAIL() << "the backward pass ended";
    } catch (const Error& error) {
      EXPECT_THAT(std::string(error.what()), testing::HasSubstr("no memory for a gradient bucket"));
      EXPECT_THAT(std::string(error.what()), testing::HasSubstr("cuda:2"));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    simulated::fail_allocations_above(index, 0);
    simulated::set_memory_limit(index, 0);
  });
}

// ---- optimizers

template <class Optimizer, class Options>
void expect_same_steps(const Options& options, at::ScalarType type = at::kFloat) {
  const c10::Device device(c10::kCUDA, 1);
  torch::manual_seed(4);
  std::vector<at::Tensor> host, on_device;
  for (const auto& sizes : {std::vector<std::int64_t>{20, 30}, {7}, {2, 3, 4}}) {
    host.push_back(torch::randn(sizes).to(type).requires_grad_());
    on_device.push_back(host.back().detach().to(device).requires_grad_());
  }
  Optimizer by_host(host, options), by_device(on_device, options);
  simulated::reset_counts();
  for (int step = 0; step < 4; ++step) {
    for (std::size_t i = 0; i < host.size(); ++i) {
      if (step == 2 && i == 1) {  // a parameter without a gradient
        host[i].mutable_grad() = on_device[i].mutable_grad() = at::Tensor();
        continue;
      }
      host[i].mutable_grad() = torch::randn(host[i].sizes()).to(type);
      on_device[i].mutable_grad() = host[i].grad().pin_memory().to(device, /*non_blocking=*/true);
    }
    by_host.step();
    by_device.step();
  }
  EXPECT_EQ(simulated::counts().synchronisations, 0U);
  for (std::size_t i = 0; i < host.size(); ++i)
    EXPECT_TRUE(torch::allclose(host[i], on_device[i].cpu(), 1e-4, 1e-5)) << i;
  const auto host_state = by_host.state(), device_state = by_device.state();
  ASSERT_EQ(host_state.size(), device_state.size());
  for (std::size_t i = 0; i < host_state.size(); ++i) {
    EXPECT_EQ(host_state[i].first, device_state[i].first);
    EXPECT_TRUE(torch::allclose(host_state[i].second, device_state[i].second.cpu(), 1e-4, 1e-5))
        << host_state[i].first;
  }
  by_device.set_state(host_state);  // a checkpoint may come from the CPU
  by_device.verify_state();
}

TEST(DeviceOptimizers, take_the_steps_of_the_cpu) {
  using namespace optim;
  expect_same_steps<Adam>(AdamOptions{.lr = 0.01, .weight_decay = 0.1});
  expect_same_steps<AdamW>(AdamWOptions{.lr = 0.01});
  expect_same_steps<SGD>(SGDOptions{.lr = 0.1});
  expect_same_steps<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.1});
  expect_same_steps<SGD>(
      SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
  expect_same_steps<LAMB>(LAMBOptions{.lr = 0.01, .weight_decay = 0.1});
  expect_same_steps<LARS>(LARSOptions{.lr = 0.1, .weight_decay = 0.1});
  expect_same_steps<AdamW>(AdamWOptions{.lr = 0.01}, at::kBFloat16);
}

TEST(DeviceAverage, follows_the_weights_as_on_the_cpu) {
  const c10::Device device(c10::kCUDA, 1);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor host = random_tensor({20, 30}, 1).to(type), on_device = host.to(device);
    optim::ExponentialMovingAverage by_host({host}, 0.9, true), by_device({on_device}, 0.9, true);
    simulated::reset_counts();
    for (std::uint64_t step = 0; step < 5; ++step) {
      const at::Tensor change = random_tensor({20, 30}, 10 + step).to(type).pin_memory();
      host.add_(change);
      on_device.add_(change.to(device, /*non_blocking=*/true));
      by_host.update();
      by_device.update();
    }
    EXPECT_EQ(simulated::counts().synchronisations, 0U);
    {
      const auto swapped = by_host.swap_in(), on_device_swapped = by_device.swap_in();
      EXPECT_TRUE(torch::allclose(host, on_device.cpu(), 1e-2, 1e-5));
    }
    EXPECT_TRUE(torch::equal(host, on_device.cpu())) << "the weights have come back";
    const auto state = by_host.state();
    EXPECT_TRUE(torch::allclose(by_device.state()[0].second.cpu(), state[0].second, 1e-4, 1e-5));
    by_device.set_state(state);  // a checkpoint may come from the CPU
    by_device.verify();
    EXPECT_TRUE(torch::equal(by_device.state()[0].second.cpu(), state[0].second));
  }
  expect_error(ErrorCode::kInvalid, {"on cpu and on cuda:1; move them to one device"}, [&] {
    optim::ExponentialMovingAverage({torch::zeros({3}), torch::zeros({3}, device)});
  });
}

TEST(DeviceOptimizers, refuse_parameters_on_several_devices) {
  const at::Tensor host = torch::zeros({3}),
                   on_device = torch::zeros({3}, c10::Device(c10::kCUDA, 1));
  expect_error(
      ErrorCode::kInvalid,
      {"parameter 0 is on cpu and parameter 1 on cuda:1; an optimizer's parameters must be "
       "on one device"},
      [&] {
        optim::SGD({host, on_device});
      });
}

TEST(DeviceDataParallel, of_a_module_that_was_moved_afterwards_says_when_to_move_it) {
  run_on_devices(2, [](ProcessGroup& group, c10::Device device) {
    Net net = net_of(nullptr);
    net->to(device);
    DistributedDataParallel<NetImpl> model(net, shared(group));
    net->to(c10::kCPU);
    expect_error(ErrorCode::kInvalid,
                 {"parameter first.weight is on cpu, but was on " + device.str() +
                  " when the module was wrapped: call module->to(device) before wrapping it"},
                 [&] { model.forward(input_of(group, 0)); });
  });
}

TEST(DeviceDataParallel, on_two_devices_of_one_rank_is_an_error_on_every_rank) {
  run_on_devices(2, [](ProcessGroup& group, c10::Device device) {
    Net net = net_of(nullptr);
    net->to(device);
    if (group.rank() == 1) net->second->to(c10::Device(c10::kCUDA, 3));
    expect_error(ErrorCode::kInvalid,
                 {"rank 1: parameter first.weight is on cuda:2 and parameter second.weight on "
                  "cuda:3; a replica must be on one device: call module->to(device)"},
                 [&] { DistributedDataParallel<NetImpl> model(net, shared(group)); });
    EXPECT_EQ(all_reduce_value(group, 1), 2) << "as good as before";
  });
}

}  // namespace
}  // namespace paceline
