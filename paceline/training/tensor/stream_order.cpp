#include "paceline/training/tensor/stream_order.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "paceline/engine/core/check.h"

namespace paceline {
namespace {

class StreamOrder : public DeviceOrder {
 public:
  explicit StreamOrder(c10::Device device)
      : impl_(device.type()), device_(device.has_index() ? device : impl_.getDevice()) {
    impl_.record(&ready_, impl_.getStream(device_), device_.index(),
                 c10::EventFlag::PYTORCH_DEFAULT);
  }
  ~StreamOrder() override { impl_.destroyEvent(ready_, device_.index()); }
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  void* ready() const override { return ready_; }
  void wait_for(void* event) const override { impl_.block(event, impl_.getStream(device_)); }

 private:
  const c10::impl::VirtualGuardImpl impl_;
  const c10::Device device_;
  void* ready_ = nullptr;
};

}  // namespace

std::shared_ptr<const DeviceOrder> order_in_current_stream(c10::Device device) {
  if (!c10::impl::hasDeviceGuardImpl(device.type())) {
    fail(ErrorCode::kUnsupported,
         "a tensor on {}: the LibTorch of this program knows no such device; link the LibTorch "
         "that has it (torch_cuda)",
         device.str());
  }
  return std::make_shared<StreamOrder>(device);
}

}  // namespace paceline
