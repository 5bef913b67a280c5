#include "paceline/training/device/device_snapshot.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>

namespace paceline {

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
