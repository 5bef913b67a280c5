#pragma once

// All code that depends on the version of LibTorch, from Debian's 1.13.1 to the current 2.x. No
// other code in the project checks the version.

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include <ATen/autocast_mode.h>
#include <c10/core/Allocator.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/version.h>

namespace paceline {

// A std::shared_ptr to a node in older versions, a c10::intrusive_ptr in newer ones.
using GradientAccumulator =
    decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

// Makes a node for the autograd graph, in the kind of pointer that LibTorch uses for nodes.
template <class Node, class... Args>
auto make_node(Args&&... args) {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, Node>) {
    return c10::make_intrusive<Node>(std::forward<Args>(args)...);
  } else {
    return std::shared_ptr<Node>(new Node(std::forward<Args>(args)...), [](Node* node) {
      deleteNode(node);
    });  // torch::autograd::deleteNode
  }
}

// The class that carries out c10d's collectives. Since 2.0 that is c10d::Backend, of which a
// c10d::ProcessGroup has one for each device type.
#if TORCH_VERSION_MAJOR >= 2
using C10dProcessGroup = c10d::Backend;
#else
using C10dProcessGroup = c10d::ProcessGroup;
#endif

// c10d's store. Newer versions require clone(), which older ones do not have. It is declared here
// without `override`, so that a derived store can override it in all versions.
class PortableStore : public c10d::Store {
 public:
  virtual c10::intrusive_ptr<c10d::Store> clone() = 0;
};

// Before 2.3, c10::Allocator::allocate() is const. From 2.3 on it is not, and copy_data() must be
// overridden as well.
class PortableAllocator : public c10::Allocator {
 public:
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
  c10::DataPtr allocate(std::size_t bytes) override { return allocate_block(bytes); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
#else
  c10::DataPtr allocate(std::size_t bytes) const override { return allocate_block(bytes); }
#endif

 private:
  virtual c10::DataPtr allocate_block(std::size_t bytes) const = 0;
};

// Autocast on the CPU, for this thread. Its operators support float16 only from 2.4 on.
struct CpuAutocast {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
  static constexpr bool kHasHalf = true;
  static bool is_enabled() { return at::autocast::is_autocast_enabled(at::kCPU); }
  static void set_enabled(bool enabled) { at::autocast::set_autocast_enabled(at::kCPU, enabled); }
  static at::ScalarType dtype() { return at::autocast::get_autocast_dtype(at::kCPU); }
  static void set_dtype(at::ScalarType type) { at::autocast::set_autocast_dtype(at::kCPU, type); }
#else
  static constexpr bool kHasHalf = false;
  static bool is_enabled() { return at::autocast::is_cpu_enabled(); }
  static void set_enabled(bool enabled) { at::autocast::set_cpu_enabled(enabled); }
  static at::ScalarType dtype() { return at::autocast::get_autocast_cpu_dtype(); }
  static void set_dtype(at::ScalarType type) { at::autocast::set_autocast_cpu_dtype(type); }
#endif
};

// The key under which a torch::optim::Optimizer keeps the state of a parameter: before 2.1 the
// address of its TensorImpl as text, since then the address itself.
template <class States>
typename States::key_type key_of_state(const States& /*states*/, const at::Tensor& parameter) {
  void* const address = parameter.unsafeGetTensorImpl();
  if constexpr (std::is_same_v<typename States::key_type, std::string>)
    return fmt::format("{}", address);
  else
    return address;
}

}  // namespace paceline
