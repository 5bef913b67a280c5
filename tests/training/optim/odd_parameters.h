#pragma once

// Parameters of awkward shapes and layouts with reproducible values, for the tests of this folder.

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/optim/optimizer.h"

namespace paceline::optim {

inline at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed));
}

// One large parameter, one smaller than a cache line, one in another memory format.
inline std::vector<at::Tensor> make_odd_parameters(const std::vector<at::ScalarType>& types = {
                                                       at::kFloat, at::kFloat, at::kFloat}) {
  std::vector<at::Tensor> parameters = {random({371, 53}, 1), random({3}, 2),
                                        random({4, 3, 3, 3}, 3)};
  parameters[2] = parameters[2].contiguous(at::MemoryFormat::ChannelsLast);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    parameters[i] = parameters[i].to(types[i]).set_requires_grad(true);
  return parameters;
}

inline void set_gradients(const std::vector<at::Tensor>& parameters, int step) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() =
        random(parameters[i].sizes(), static_cast<std::uint64_t>(100 * (step + 1)) + i)
            .to(parameters[i].scalar_type());
  }
}

inline void take_steps(Optimizer& optimizer, int first, int last) {
  for (int step = first; step < last; ++step) {
    set_gradients(optimizer.parameters(), step);
    optimizer.step();
  }
}

inline std::shared_ptr<ProcessGroup> borrowed(ProcessGroup& group) {
  return {&group, [](auto*) {}};
}

inline void expect_same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::equal(a[i], b[i])) << "parameter " << i;
    EXPECT_EQ(a[i].strides(), b[i].strides()) << "parameter " << i;
  }
}

// Copies of the current values.
inline std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> all;
  for (const auto& tensor : tensors) all.push_back(tensor.detach().clone());
  return all;
}

inline NamedTensors copies(const NamedTensors& tensors) {
  NamedTensors all;
  for (const auto& [name, tensor] : tensors) all.emplace_back(name, tensor.clone());
  return all;
}

inline void assign(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

}  // namespace paceline::optim
