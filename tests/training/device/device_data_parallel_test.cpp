// DataParallel over several simulated CUDA devices, compared with as many replicas on the CPU. The
// replicas are on the devices 1 to 3, so any use of device 0 reveals code that did not choose a
// device.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <c10/core/StreamGuard.h>
#include <torch/torch.h>

#include "paceline/training/parallel/data_parallel.h"

#include "tests/harness/expect_error.h"
#include "tests/training/device/device_ranks.h"

namespace paceline {
namespace {

using Devices = std::vector<c10::Device>;

c10::Device cuda(int index) { return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)}; }
const c10::Device kFirst = cuda(1), kSecond = cuda(2), kThird = cuda(3);

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  explicit NetImpl(bool normalises = true) : normalises(normalises) { NetImpl::reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(6, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    second = register_module("second", torch::nn::Linear(16, 3));
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor features = first(input);
    if (normalises) features = norm(features);
    return second(at::relu(features));
  }
  bool normalises;
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

Net net_on(c10::Device device, bool normalises = true) {
  torch::manual_seed(4);
  Net net(normalises);
  net->to(device);
  return net;
}

at::Tensor batch(std::int64_t samples, std::uint64_t seed = 1) {
  return random_tensor({samples, 6}, seed);
}

void expect_close(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(found.defined(), expected.defined()) << what;
  if (!found.defined()) return;
  EXPECT_TRUE(at::allclose(found.cpu(), expected.cpu(), 1e-4, 1e-5))
      << what << ": " << found.cpu() << " and " << expected.cpu();
}

// Parameters, their gradients, and buffers.
void expect_same_state(Net& found, Net& expected) {
  for (std::size_t i = 0; i < found->parameters().size(); ++i) {
    const at::Tensor own = found->parameters()[i], other = expected->parameters()[i];
    expect_close(own.detach(), other.detach(), "parameter " + std::to_string(i));
    expect_close(own.grad(), other.grad(), "gradient " + std::to_string(i));
  }
  for (std::size_t i = 0; i < found->buffers().size(); ++i)
    expect_close(found->buffers()[i], expected->buffers()[i], "buffer " + std::to_string(i));
}

void wait_for_all_streams() {
  for (int device = 0; device < simulated::num_devices(); ++device)
    simulated::Stream::for_each(device, [](simulated::Stream& stream) { stream.drain(); });
}

class DeviceReplicas : public testing::Test {
 protected:
  void SetUp() override { touches_ = simulated::num_touches(0); }
  void TearDown() override {
    EXPECT_EQ(simulated::num_touches(0), touches_) << "device 0 was used, which has no replica";
  }

 private:
  std::uint64_t touches_ = 0;
};

// Trains on the CPU and on the devices, and compares losses, gradients and buffers in each step.
void expect_parity(const Devices& devices, std::int64_t samples, bool normalises = true) {
  Net host = net_on(c10::kCPU, normalises), net = net_on(devices.front(), normalises);
  DataParallel<NetImpl> on_host(host, static_cast<int>(devices.size())), model(net, devices);
  torch::optim::SGD host_step(host->parameters(), 0.05), step(net->parameters(), 0.05);
  for (std::uint64_t i = 0; i < 3; ++i) {
    SCOPED_TRACE(std::to_string(devices.size()) + " devices, " + std::to_string(samples) +
                 " samples, step " + std::to_string(i));
    host_step.zero_grad();
    step.zero_grad();
    const at::Tensor input = batch(samples, i);
    const at::Tensor expected = on_host(input).square().sum();
    const at::Tensor output = model(input.to(devices.front()));
    EXPECT_EQ(output.device(), devices.front());
    const at::Tensor loss = output.square().sum();
    expected.backward();
    loss.backward();
    expect_close(loss.detach(), expected.detach(), "loss");
    expect_same_state(net, host);
    host_step.step();
    step.step();
  }
}

TEST_F(DeviceReplicas, train_as_on_the_cpu) {
  expect_parity({kFirst}, 8);
  expect_parity({kFirst, kSecond}, 13);
  expect_parity({kThird, kFirst, kSecond}, 13);
}

TEST_F(DeviceReplicas, may_have_unequal_parts_or_none) {
  for (const std::int64_t samples : {0, 1, 2, 4, 5, 7})
    expect_parity({kFirst, kSecond, kThird}, samples, /*normalises=*/false);
}

// A device may be listed twice, as in PyTorch.
TEST_F(DeviceReplicas, add_up_gradients_in_the_order_of_the_cpu) {
  struct Scale : torch::nn::Cloneable<Scale> {
    Scale() { reset(); }
    void reset() override { weight = register_parameter("weight", at::ones({1})); }
    at::Tensor forward(const at::Tensor& input) { return weight * input; }
    at::Tensor weight;
  };
  const at::Tensor input = at::rand({6}, at::detail::createCPUGenerator(3)) * 1e3;
  const auto host = std::make_shared<Scale>(), net = std::make_shared<Scale>();
  net->to(kFirst);
  DataParallel on_host(host, 6), model(net, {kFirst, kSecond, kThird, kSecond, kFirst, kThird});
  on_host(input).sum().backward();
  model(input).sum().backward();
  EXPECT_TRUE(at::equal(net->weight.grad().cpu(), host->weight.grad()));
}

TEST_F(DeviceReplicas, take_inputs_and_return_their_gradients_on_any_device) {
  for (const c10::Device device : {c10::Device(c10::kCPU), kFirst, kSecond, kThird}) {
    for (const std::int64_t samples : {1, 7}) {
      Net host = net_on(c10::kCPU, false), net = net_on(kFirst, false);
      DataParallel<NetImpl> on_host(host, 2), model(net, Devices{kFirst, kSecond});
      const at::Tensor expected = batch(samples).requires_grad_();
      const at::Tensor input = batch(samples).to(device).requires_grad_();
      on_host(expected).square().sum().backward();
      model(input).square().sum().backward();
      EXPECT_EQ(input.grad().device(), device);
      expect_close(input.grad(), expected.grad(), device.str());
      expect_same_state(net, host);
    }
  }
}

TEST_F(DeviceReplicas, on_the_cpu_take_inputs_of_a_device) {
  Net expected = net_on(c10::kCPU), net = net_on(c10::kCPU);
  DataParallel<NetImpl> on_host(expected, 2), model(net, 2);
  simulated::Stream& stream = simulated::Stream::of(kFirst.index(), 0);
  stream.set_delays({.share = 1, .most = std::chrono::milliseconds(4)});
  for (std::uint64_t i = 0; i < 5; ++i) {
    on_host(batch(8, i)).square().sum().backward();
    model(batch(8, i).to(kFirst, /*non_blocking=*/true)).square().sum().backward();
    expect_same_state(net, expected);
  }
  stream.set_delays({});
}

TEST_F(DeviceReplicas, do_not_make_the_host_wait) {
  Net net = net_on(kFirst);
  DataParallel<NetImpl> model(net, Devices{kFirst, kSecond, kThird});
  const c10::DeviceGuard guard(kFirst);  // pinned memory needs a context of the current device
  const at::Tensor host = batch(13).pin_memory();
  for (const at::Tensor& input : {batch(13).to(kFirst), batch(13).to(kThird), host, batch(13)}) {
    simulated::reset_counts();
    model(input).square().sum().backward();
    EXPECT_EQ(simulated::counts().synchronisations, 0U) << input.device();
  }
  wait_for_all_streams();
}

// All work is on streams of the program, and streams that should wait would be late otherwise.
TEST_F(DeviceReplicas, follow_the_callers_streams) {
  const auto slow = [](bool own, double share) {
    for (const c10::Device device : {kFirst, kSecond, kThird}) {
      simulated::Stream::of(device.index(), own ? own_stream(device).id() : 0)
          .set_delays({.share = share, .most = std::chrono::milliseconds(4)});
    }
  };
  for (const bool own : {true, false}) {
    Net host = net_on(c10::kCPU), net = net_on(kFirst);
    DataParallel<NetImpl> on_host(host, 3), model(net, Devices{kFirst, kSecond, kThird});
    wait_for_all_streams();  // for the initial values
    slow(own, 1);
    for (std::uint64_t i = 0; i < 3; ++i) {
      const at::Tensor input = batch(13, i);
      on_host(input).square().sum().backward();
      at::Tensor loss;
      {
        const c10::MultiStreamGuard streams(
            {own_stream(kFirst), own_stream(kSecond), own_stream(kThird)});
        loss = model(input.to(kFirst)).square().sum();
      }
      loss.backward();
      const c10::StreamGuard stream(own_stream(kFirst));
      expect_same_state(net, host);
    }
    slow(own, 0.25);
    wait_for_all_streams();
  }
}

TEST_F(DeviceReplicas, have_their_device_as_the_current_one) {
  struct Counting : torch::nn::Cloneable<Counting> {
    void reset() override {}
    at::Tensor forward(const at::Tensor& input) {
      return input + torch::arange(input.size(0), at::TensorOptions(c10::kCUDA));
    }
  };
  DataParallel model(std::make_shared<Counting>(), {kFirst, kSecond});
  for (const std::int64_t samples : {1, 5}) {
    const at::Tensor output = model(torch::zeros({samples}));
    EXPECT_EQ(output.cpu().max().item<float>(), samples == 1 ? 0 : 2);
  }
  EXPECT_EQ(with_index(c10::kCUDA), cuda(0));
}

// LibTorch runs all backward passes of a device in one thread.
TEST_F(DeviceReplicas, of_two_models_do_not_wait_for_each_other) {
  Net one = net_on(kFirst), other = net_on(kSecond), host = net_on(c10::kCPU);
  DataParallel<NetImpl> first(one, Devices{kFirst, kSecond}), second(other, {kSecond, kFirst});
  DataParallel<NetImpl> on_host(host, 2);
  for (std::uint64_t i = 0; i < 5; ++i) {
    const at::Tensor input = batch(8, i);
    on_host(input).square().sum().backward();
    const at::Tensor loss = second(input).square().sum().to(kFirst);
    (first(input).square().sum() + loss).backward();
    expect_same_state(one, host);
    expect_same_state(other, host);
  }
}

TEST_F(DeviceReplicas, give_their_memory_back) {
  std::vector<std::size_t> before;
  Net net = net_on(kFirst);
  for (const c10::Device device : {kFirst, kSecond, kThird})
    before.push_back(simulated::live_bytes(device.index()));
  at::Tensor loss;
  {
    DataParallel<NetImpl> model(net, Devices{kFirst, kSecond, kThird});
    loss = model(batch(12)).square().sum();
    model(batch(12)).square().sum().backward();
  }
  loss.backward();  // a graph may outlive the object
  loss = at::Tensor();
  for (at::Tensor& parameter : net->parameters()) parameter.mutable_grad() = at::Tensor();
  wait_for_all_streams();
  EXPECT_EQ(simulated::live_bytes(1), before[0]);
  EXPECT_EQ(simulated::live_bytes(2), before[1]);
  EXPECT_EQ(simulated::live_bytes(3), before[2]);
}

// ---- bad input and faults

TEST_F(DeviceReplicas, are_refused_on_devices_that_cannot_be_used) {
  const auto refuses = [](const Devices& devices, const std::vector<std::string>& words) {
    expect_error(ErrorCode::kInvalid, words, [&] { DataParallel<NetImpl> model(Net(), devices); });
  };
  refuses({}, {"no devices; at least 1 is needed"});
  refuses({kFirst, c10::kCPU}, {"replicas on cuda:1 and cpu; give devices of one type"});
  refuses({c10::kCPU, kFirst}, {"replicas on cpu and cuda:1; give devices of one type"});
  refuses({kFirst, cuda(4)}, {"device cuda:4: this process sees 4 CUDA devices"});
  Net net = net_on(c10::kCPU);
  DataParallel<NetImpl> on_cpu(net, Devices{c10::kCPU, c10::kCPU});  // as 2 replicas
  EXPECT_EQ(on_cpu(batch(8)).size(0), 8);
}

TEST_F(DeviceReplicas, need_the_whole_module_on_the_first_device) {
  Net net = net_on(c10::kCPU);
  DataParallel<NetImpl> model(net, Devices{kFirst, kSecond}), on_cpu(net, 2);
  const auto refuses = [](auto& wrapper, const std::vector<std::string>& words) {
    expect_error(ErrorCode::kInvalid, words, [&] { wrapper(batch(8)); });
  };
  const std::string cure = "call module->to(device) with the first device";
  refuses(model, {"first.weight is on cpu, but the first replica is on cuda:1", cure});
  net->first->to(kFirst);
  refuses(model, {"norm.weight is on cpu, but the first replica is on cuda:1", cure});
  net->to(kFirst);
  EXPECT_EQ(model(batch(8)).device(), kFirst);
  refuses(on_cpu, {"first.weight is on cuda:1, but the first replica is on cpu",
                   "give the devices of the replicas instead of their number"});
  net->to(kSecond);
  refuses(model, {"first.weight is on cuda:2, but the first replica is on cuda:1", cure});
}

TEST_F(DeviceReplicas, are_named_with_their_device_in_errors) {
  struct Failing : torch::nn::Cloneable<Failing> {
    void reset() override {}
    at::Tensor forward(const at::Tensor& input) {
      if (input.size(0) == 2) throw std::runtime_error("two samples");
      return input;
    }
  };
  DataParallel model(std::make_shared<Failing>(), {kFirst, kSecond});
  expect_error(ErrorCode::kInvalid, {"replica 1 of 2 on cuda:2: forward: two samples"},
               [&] { model(torch::ones({5})); });
  EXPECT_EQ(model(torch::ones({6})).size(0), 6);
}

constexpr std::int64_t kLarge = 1 << 20;  // bytes of the intermediate values of a part

struct LargeImpl : torch::nn::Cloneable<LargeImpl> {
  LargeImpl() { LargeImpl::reset(); }
  void reset() override { weight = register_parameter("weight", at::ones({1 << 16})); }
  at::Tensor forward(const at::Tensor& input) {
    return (input.expand({input.size(0), kLarge / 4}) * 2).sum(1) + weight.sum();
  }
  at::Tensor weight;
};

TEST_F(DeviceReplicas, without_memory_are_named_with_their_device) {
  const auto net = std::make_shared<LargeImpl>();
  net->to(kFirst);
  const auto limited = [](std::size_t largest, const std::vector<std::string>& words,
                          const std::function<void()>& act) {
    simulated::fail_allocations_above(2, largest);
    expect_error(ErrorCode::kInvalid, words, act);
    simulated::fail_allocations_above(2, 0);
  };
  limited(4096, {"replica 1 of 2 on cuda:2: clone: CUDA out of memory"}, [&] {
    DataParallel model(net, {kFirst, kSecond});
  });
  DataParallel model(net, {kFirst, kSecond});
  const auto forward = [&] { return model(torch::ones({2, 1})).sum(); };
  limited(4096, {"replica 1 of 2 on cuda:2: copy: CUDA out of memory"}, forward);
  limited(kLarge / 2, {"replica 1 of 2 on cuda:2: forward: CUDA out of memory"}, forward);
  const at::Tensor loss = forward();
  limited(4096, {"replicas on cuda:1, cuda:2: backward: CUDA out of memory", "(GPU 2;"},
          [&] { loss.backward(); });
  forward().backward();
  EXPECT_EQ(net->weight.grad().cpu()[0].item<float>(), 2);
}

}  // namespace
}  // namespace paceline
