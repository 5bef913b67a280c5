#include "paceline/training/device/device_memory.h"

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>

#include "paceline/engine/core/check.h"

namespace paceline {

at::Tensor zeros_on_device(ProcessGroup& group, std::int64_t count, at::ScalarType type,
                           c10::Device device, const std::string& what, const std::string& cure) {
  try {
    return at::zeros({count}, at::TensorOptions(type).device(device));
  } catch (const c10::OutOfMemoryError&) {
    const auto bytes = static_cast<std::size_t>(count) * c10::elementSize(type);
    const std::string message =
        fmt::format("{} has no memory for {} of {} bytes; {}", device.str(), what, bytes, cure);
    group.abort(message);
    fail(ErrorCode::kSystem, "{}: {}", group.self(), message);
  }
}

TensorCopies::TensorCopies(c10::Device device, std::string what)
    : device_(with_index(device)),
      what_(std::move(what)),
      order_(order_in_current_stream(device_)),
      begin_(StreamEvent::after_current(device_)) {}

at::Tensor TensorCopies::copy_of(const at::Tensor& tensor, bool is_read, bool is_written) {
  for (Copy& copy : copies_) {
    if (!copy.of_device.is_same(tensor)) continue;
    copy.is_read |= is_read;
    copy.is_written |= is_written;
    return copy.on_host;
  }
  const auto options = tensor.options().device(at::kCPU).pinned_memory(true);
  copies_.push_back(
      {tensor, at::empty_strided(tensor.sizes(), tensor.strides(), options), is_read, is_written});
  return copies_.back().on_host;
}

void TensorCopies::begin() {
  const at::NoGradGuard no_grad;
  const c10::Stream stream = side_stream(device_, SideStream::kToHost);
  const c10::StreamGuard guard(stream);
  begin_.block(stream);
  for (const Copy& copy : copies_) {
    if (copy.is_read) copy.on_host.copy_(copy.of_device.detach(), /*non_blocking=*/true);
  }
  fetched_ = StreamEvent::after(stream);
}

void TensorCopies::fetch(Deadline deadline) const { fetched_.wait_on_host(deadline, what_); }

DeviceEvent TensorCopies::deliver() const {
  const at::NoGradGuard no_grad;
  const c10::Stream stream = side_stream(device_, SideStream::kToDevice);
  const c10::StreamGuard guard(stream);
  begin_.block(stream);
  for (const Copy& copy : copies_) {
    if (copy.is_written) copy.of_device.detach().copy_(copy.on_host, /*non_blocking=*/true);
  }
  delivered_ = StreamEvent::after(stream);
  return delivered_.shared();
}

void TensorCopies::settle(Deadline deadline) const { delivered_.wait_on_host(deadline, what_); }

void TensorCopies::keep(const std::shared_ptr<TensorCopies>& copies) {
  keep_until(copies->delivered_, copies);
}

at::Tensor DeviceSnapshot::copy_of(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const c10::Stream own = current_stream_of(tensor.device());
  const c10::Stream side = side_stream(tensor.device(), SideStream::kToHost);
  const auto options = tensor.options().device(at::kCPU).pinned_memory(true);
  const at::Tensor copy = at::empty_strided(tensor.sizes(), tensor.strides(), options);
  StreamEvent::after(own).block(side);
  {
    const c10::StreamGuard guard(side);
    copy.copy_(tensor.detach(), /*non_blocking=*/true);
  }
  copies_.push_back({tensor, copy, StreamEvent::after(side)});
  copies_.back().end.block(own);
  return copy;
}

void DeviceSnapshot::wait(Deadline deadline, const std::string& what) const {
  for (const Copy& copy : copies_) copy.end.wait_on_host(deadline, what);
}

void DeviceSnapshot::copy_back() const {
  const at::NoGradGuard no_grad;
  for (const Copy& copy : copies_) copy.of_device.detach().copy_(copy.on_host);
}

}  // namespace paceline
