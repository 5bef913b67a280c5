#include "tests/harness/simulated_cuda/guard.h"

#include <array>
#include <atomic>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tests/harness/simulated_cuda/libtorch_version.h"
#include "tests/harness/simulated_cuda/memory.h"

namespace paceline::simulated {

namespace {

// The pool of a device has the streams 1 to kPoolStreams, which are handed out in turn, as in CUDA.
constexpr std::int64_t kPoolStreams = 16;

thread_local int own_device = 0;
thread_local std::array<c10::StreamId, kMaxDevices> own_streams{};

c10::StreamId& stream_of(c10::DeviceIndex device) {
  return own_streams.at(static_cast<std::size_t>(device));
}

Stream& stream_of(const c10::Stream& stream) {
  return Stream::of(stream.device_index(), stream.id());
}

class Guard final : public PortableGuard {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    return {type(), static_cast<c10::DeviceIndex>(own_device)};
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < num_devices(), "CUDA error: invalid device ordinal");
    if (device.has_index()) own_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    own_device = device.index();
  }

  c10::Stream getStream(c10::Device device) const noexcept override {
    const c10::Device own = device.has_index() ? device : getDevice();
    return stream(own, stream_of(own.index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high_priority*/) const override {
    static std::array<std::atomic<std::int64_t>, kMaxDevices> next{};
    const c10::Device own = device.has_index() ? device : getDevice();
    return stream(own, 1 + next.at(static_cast<std::size_t>(own.index()))++ % kPoolStreams);
  }
  c10::Stream exchangeStream(c10::Stream next) const noexcept override {
    const c10::Stream before = getStream(next.device());
    stream_of(next.device_index()) = next.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(num_devices());
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new Event;
    static_cast<Event*>(*event)->record(stream_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) static_cast<const Event*>(event)->block(stream_of(stream));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || static_cast<const Event*>(event)->is_reached();
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void synchronize_event(void* event) const override {
    if (event != nullptr) static_cast<const Event*>(event)->synchronize();
  }

  bool queryStream(const c10::Stream& stream) const override { return stream_of(stream).is_idle(); }
  void synchronizeStream(const c10::Stream& stream) const override {
    count_synchronisation();
    stream_of(stream).drain();
  }
  void synchronize_device(c10::DeviceIndex device) const override {
    count_synchronisation();
    Stream::for_each(device, [](Stream& stream) { stream.drain(); });
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    use_on(data.get(), stream_of(stream));
  }

 private:
  static c10::Stream stream(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, device, id);
  }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard);

}  // namespace

int current_device() { return own_device; }

void set_current_device(int device) { own_device = device; }

Stream& current_stream(int device) {
  return Stream::of(device, stream_of(static_cast<c10::DeviceIndex>(device)));
}

}  // namespace paceline::simulated
