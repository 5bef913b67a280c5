#include "paceline/training/device/host_copies.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>

namespace paceline {

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

}  // namespace paceline
