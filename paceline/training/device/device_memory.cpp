#include "paceline/training/device/device_memory.h"

#include <fmt/format.h>

#include <ATen/ATen.h>

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

}  // namespace paceline
