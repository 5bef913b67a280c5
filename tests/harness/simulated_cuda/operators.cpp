// LibTorch's operators on the simulated devices. Allocations use the devices' memory, and copies
// use their streams. Every other operator runs LibTorch's CPU kernel on copies: it waits until the
// current stream has finished, computes at once, and queues the writing of the result in the
// current stream. So a task of another stream may still see the memory as it was before.

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <torch/library.h>

#include "paceline/training/tensor/libtorch_version.h"

#include "tests/harness/simulated_cuda/allocators.h"
#include "tests/harness/simulated_cuda/guard.h"
#include "tests/harness/simulated_cuda/memory.h"

namespace paceline::simulated {

namespace {

// ---- memory

class DeviceAllocator final : public PortableAllocator {
 public:
  c10::DeleterFnPtr raw_deleter() const override { return &destroy; }

 private:
  c10::DataPtr allocate_block(std::size_t bytes) const override {
    const int device = current_device();
    const c10::Device place(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
    if (bytes == 0) return {nullptr, nullptr, &destroy, place};
    void* const memory = simulated::allocate(current_stream(device), bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, memory != nullptr, "CUDA out of memory. Tried to allocate ",
                     bytes, " bytes (GPU ", device, "; ", live_bytes(device),
                     " bytes already allocated)");
    return {memory, memory, &destroy, place};
  }
  static void destroy(void* memory) {
    if (memory != nullptr) release(memory);
  }
};

class PinnedAllocator final : public PortableAllocator {
 public:
  c10::DeleterFnPtr raw_deleter() const override { return &destroy; }

 private:
  c10::DataPtr allocate_block(std::size_t bytes) const override {
    if (bytes == 0) return {nullptr, nullptr, &destroy, c10::Device(c10::kCPU)};
    count_touch(current_device());  // as in CUDA, needs a context of the current device
    void* const memory = allocate_pinned(bytes);
    return {memory, memory, &destroy, c10::Device(c10::kCPU)};
  }
  static void destroy(void* memory) {
    if (memory != nullptr) release_pinned(memory);
  }
};

}  // namespace

c10::Allocator* device_allocator() {
  static auto* const allocator = new DeviceAllocator;
  return allocator;
}

c10::Allocator* pinned_allocator() {
  static auto* const allocator = new PinnedAllocator;
  return allocator;
}

namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);

at::Tensor empty(at::IntArrayRef sizes, c10::optional<at::ScalarType> type,
                 c10::optional<at::Layout> /*layout*/, c10::optional<at::Device> device,
                 c10::optional<bool> /*pinned*/, c10::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, device_allocator(), kKeys, c10::dtype_or_default(type),
                                   format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         c10::optional<at::ScalarType> type, c10::optional<at::Layout> /*layout*/,
                         c10::optional<at::Device> device, c10::optional<bool> /*pinned*/) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, device_allocator(), kKeys,
                                           c10::dtype_or_default(type));
}

// ---- copies

// The address and layout of a tensor's elements. This does not keep the memory of a device's tensor
// alive, because a real kernel that has been queued does not do so either.
struct Elements {
  explicit Elements(const at::Tensor& tensor)
      : data(tensor.numel() > 0 ? tensor.data_ptr() : nullptr),
        sizes(tensor.sizes().vec()),
        strides(tensor.strides().vec()),
        type(tensor.scalar_type()),
        host(tensor.is_cpu() ? tensor : at::Tensor()) {}
  // Requires: the memory is open.
  at::Tensor on_host() const {
    if (host.defined()) return host;
    return at::from_blob(data, sizes, strides, at::TensorOptions(type));
  }

  void* data;
  std::vector<std::int64_t> sizes, strides;
  at::ScalarType type;
  at::Tensor host;
};

void copy_elements(const Elements& from, const Elements& to) {
  const Opened from_is_open(from.data), to_is_open(to.data);
  const c10::InferenceMode not_inference(false);
  const at::AutoDispatchBelowAutograd below_autograd;
  to.on_host().copy_(from.on_host());
}

thread_local int num_fallbacks =
    0;  // how many CPU kernels this thread is running, one inside another

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.numel() == 0) return self;
  const bool is_internal = num_fallbacks > 0;
  if (!is_internal) count_kernel();
  const int device = (self.is_cuda() ? self : source).device().index();
  Stream& stream = current_stream(device);
  if (self.is_cpu()) {  // from the device to the host
    if (non_blocking && is_pinned(self.data_ptr())) {
      stream.push([from = Elements(source), to = Elements(self)] { copy_elements(from, to); });
      return self;
    }
    if (!is_internal) count_synchronisation();
    stream.drain();
    copy_elements(Elements(source), Elements(self));
    return self;
  }
  if (source.is_cuda() && source.device() != self.device()) {
    // As CUDA does between GPUs, copies on the source's stream, after the target's stream has
    // reached this point; then the target's stream waits for the copy.
    Stream& theirs = current_stream(source.device().index());
    Event ours, done;
    ours.record(current_stream(self.device().index()));
    ours.block(theirs);
    theirs.push([from = Elements(source), to = Elements(self)] { copy_elements(from, to); });
    done.record(theirs);
    done.block(current_stream(self.device().index()));
    return self;
  }
  // Memory that is not pinned is first copied to a staging buffer, as CUDA does.
  const bool is_staged = source.is_cpu() && !is_internal && !is_pinned(source.data_ptr());
  const at::Tensor from = is_staged ? source.clone() : source;
  stream.push([from = Elements(from), to = Elements(self)] { copy_elements(from, to); });
  if (source.is_cpu() && !non_blocking && !is_internal) {
    count_synchronisation();
    stream.drain();
  }
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& self) {
  if (self.sizes() != source.sizes()) self.resize_(source.sizes());
  const_cast<at::Tensor&>(self).copy_(source);
  return self;
}

at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  if (self.numel() == 0) return self;
  count_kernel();
  current_stream(self.device().index()).push([to = Elements(self), value] {
    const Opened is_open(to.data);
    const c10::InferenceMode not_inference(false);
    const at::AutoDispatchBelowAutograd below_autograd;
    to.on_host().fill_(value);
  });
  return self;
}

at::Tensor& zero(at::Tensor& self) { return fill(self, 0); }

at::Scalar local_scalar_dense(const at::Tensor& self) {
  count_synchronisation();
  ++num_fallbacks;
  const at::Tensor host = self.cpu();
  --num_fallbacks;
  return host.item();
}

// ---- views and shapes

at::Tensor view(const at::Tensor& self, at::IntArrayRef sizes) {
  return at::native::view(self, sizes);
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                      c10::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::native::_reshape_alias(self, sizes, strides);
}

at::Tensor unfold(const at::Tensor& self, std::int64_t dim, std::int64_t size, std::int64_t step) {
  return at::native::unfold(self, dim, size, step);
}

// Does not preserve the elements, because LibTorch's CPU kernels, which call it, write all of them.
const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes,
                         c10::optional<at::MemoryFormat> /*format*/) {
  if (self.sizes() == sizes) return self;
  const c10::DeviceGuard guard(self.device());
  const at::Tensor fresh =
      at::detail::empty_generic(sizes, device_allocator(), kKeys, self.scalar_type(), {});
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(fresh.storage());
  self.unsafeGetTensorImpl()->set_sizes_contiguous(fresh.sizes());
  return self;
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  use_on(self.storage().data_ptr().get(), Stream::of(stream.device_index(), stream.id()));
}

bool is_pinned_tensor(const at::Tensor& self, c10::optional<at::Device> /*device*/) {
  return self.is_cpu() && self.numel() > 0 && is_pinned(self.data_ptr());
}

at::Tensor pin_memory(const at::Tensor& self, c10::optional<at::Device> /*device*/) {
  return at::empty_like(self, self.options().pinned_memory(true)).copy_(self);
}

// ---- everything else

// Whether the host must wait for the device, because the operator's result is a number, or its size
// depends on the values.
bool waits_for_device(const c10::OperatorHandle& op) {
  for (const char* name : {"aten::nonzero", "aten::masked_select", "aten::unique_dim",
                           "aten::_unique2", "aten::repeat_interleave"}) {
    if (op.schema().name() == name) return true;
  }
  for (const auto& result : op.schema().returns()) {
    const auto kind = result.type()->kind();
    if (kind == c10::TypeKind::BoolType || kind == c10::TypeKind::NumberType) return true;
  }
  return false;
}

std::vector<at::Tensor> on_host(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.cpu());
  return copies;
}

// Runs an operator on lists of tensors, which LibTorch's fallback would not copy back.
void compute_lists_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::size_t count = op.schema().arguments().size();
  const std::vector<at::Tensor> self = torch::jit::peek(*stack, 0, count).toTensorVector();
  std::vector<at::Tensor> results;
  for (std::size_t i = 0; i < count; ++i) {
    c10::IValue& argument = torch::jit::peek(*stack, i, count);
    if (!argument.isTensorList()) continue;
    const std::vector<at::Tensor> copies = on_host(argument.toTensorVector());
    if (i == 0) results = copies;
    argument = copies;
  }
  op.callBoxed(stack);
  if (op.schema().returns().empty()) {  // in place
    for (std::size_t i = 0; i < self.size(); ++i) {
      at::Tensor to = self[i];
      to.copy_(results[i]);
    }
    return;
  }
  results = torch::jit::pop(*stack).toTensorVector();
  for (std::size_t i = 0; i < results.size(); ++i) results[i] = results[i].to(self[i].device());
  torch::jit::push(*stack, results);
}

bool is_running_statistic(const c10::Argument& argument) {
  return argument.name() == "running_mean" || argument.name() == "running_var";
}

// Runs a batch normalisation. It writes its running statistics, although its schema does not
// declare that, so LibTorch's fallback would write them only to copies.
void normalise_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const std::size_t count = arguments.size();
  c10::Device device(c10::kCPU);
  std::vector<std::pair<at::Tensor, at::Tensor>> written;  // a tensor on the device, and its copy
  for (std::size_t i = 0; i < count; ++i) {
    c10::IValue& argument = torch::jit::peek(*stack, i, count);
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    const at::Tensor given = argument.toTensor();
    if (given.is_cuda()) device = given.device();
    const at::Tensor copy = given.cpu();
    if (is_running_statistic(arguments[i])) written.emplace_back(given, copy);
    argument = copy;
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (auto& [on_device, copy] : written) on_device.copy_(copy);
  const std::size_t num_results = op.schema().returns().size();
  for (std::size_t i = 0; i < num_results; ++i) {
    c10::IValue& result = torch::jit::peek(*stack, i, num_results);
    if (result.isTensor() && result.toTensor().defined()) result = result.toTensor().to(device);
  }
}

void compute_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (num_fallbacks == 0) count_kernel();
  if (waits_for_device(op)) count_synchronisation();
  struct Within {
    Within() { ++num_fallbacks; }
    ~Within() { --num_fallbacks; }
  } within;
  if (op.schema().name().rfind("aten::_foreach_", 0) == 0) return compute_lists_on_host(op, stack);
  if (std::ranges::any_of(op.schema().arguments(), is_running_statistic))
    return normalise_on_host(op, stack);
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_on_host>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("copy_", &copy_);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("fill_.Scalar", &fill);
  library.impl("zero_", &zero);
  library.impl("_local_scalar_dense", &local_scalar_dense);
  library.impl("view", &view);
  library.impl("as_strided", &as_strided);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("unfold", &unfold);
  library.impl("resize_", &resize);
  library.impl("record_stream", &record_stream);
  library.impl("is_pinned", &is_pinned_tensor);
  library.impl("_pin_memory", &pin_memory);
}

}  // namespace
}  // namespace paceline::simulated
