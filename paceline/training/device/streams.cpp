#include "paceline/training/device/streams.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <dlfcn.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "paceline/engine/core/check.h"

namespace paceline {

namespace {

constexpr std::chrono::microseconds kPollInterval{50};
constexpr const char* kCudaPart = "libtorch_cuda.so";

c10::impl::VirtualGuardImpl interface_of(c10::Device device) {
  if (!knows_device_type(device.type())) {
    fail(
        ErrorCode::kUnsupported,
        "a tensor on {}: the LibTorch of this program does not support such devices; link one that "
        "does (torch_cuda)",
        device.str());
  }
  return c10::impl::VirtualGuardImpl(device.type());
}

}  // namespace

bool knows_device_type(c10::DeviceType type) { return c10::impl::hasDeviceGuardImpl(type); }

std::string load_libtorch_cuda() {
  if (knows_device_type(c10::kCUDA)) return "";
  if (dlopen(kCudaPart, RTLD_NOW | RTLD_GLOBAL) != nullptr) return "";
  const std::string problem = dlerror();
  const bool is_missing = problem.starts_with(std::string(kCudaPart) + ": cannot open");
  return is_missing ? "" : "cannot load the part of LibTorch for CUDA: " + problem;
}

int num_cuda_devices() {
  if (!knows_device_type(c10::kCUDA)) return 0;
  return c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount();
}

c10::Device with_index(c10::Device device) {
  return device.has_index() ? device : interface_of(device).getDevice();
}

c10::Device choose_device(const std::string& name, int local_rank) {
  if (name == "cpu") return c10::kCPU;
  const bool is_numbered = name.starts_with("cuda:") && name.size() > 5 && name.size() < 9 &&
                           name.find_first_not_of("0123456789", 5) == std::string::npos;
  check(name == "cuda" || is_numbered, "unknown device '{}'; choose cpu, cuda or cuda:N", name);
  if (const std::string problem = load_libtorch_cuda(); !problem.empty())
    fail(ErrorCode::kUnsupported, "device {}: {}; choose cpu", name, problem);
  if (!knows_device_type(c10::kCUDA)) {
    fail(
        ErrorCode::kUnsupported,
        "device {}: the LibTorch of this program was built without CUDA; build with a LibTorch for "
        "CUDA (-DPACELINE_LIBTORCH_WHEEL=...), or choose cpu",
        name);
  }
  const int count = num_cuda_devices();
  check(count > 0,
        "device {}: this process sees no CUDA device; check nvidia-smi and CUDA_VISIBLE_DEVICES, "
        "or choose cpu",
        name);
  const int index = is_numbered ? std::stoi(name.substr(5)) : local_rank % count;
  check(index < count, "device {}: this process sees {} CUDA devices, numbered from 0", name,
        count);
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

void set_current_device(c10::Device device) {
  if (!device.is_cpu()) interface_of(device).setDevice(device);
}

c10::Stream current_stream_of(c10::Device device) {
  return interface_of(device).getStream(with_index(device));
}

c10::Stream side_stream(c10::Device device, SideStream kind) {
  constexpr std::size_t kNumKinds = 3;
  using OfDevice = std::array<std::optional<c10::Stream>, kNumKinds>;
  static std::mutex mutex;                        // guards `all`
  static auto& all = *new std::vector<OfDevice>;  // [index of the device]
  const c10::Device own = with_index(device);
  const auto index = static_cast<std::size_t>(own.index());
  const std::lock_guard lock(mutex);
  if (all.size() <= index) all.resize(index + 1);
  auto& stream = all[index][static_cast<std::size_t>(kind)];
  if (!stream) stream = interface_of(own).getStreamFromGlobalPool(own);
  return *stream;
}

struct StreamEvent::Owned {
  explicit Owned(const c10::Stream& stream) : device(stream.device()), interface(device.type()) {
    interface.record(&event, stream, device.index(), c10::EventFlag::PYTORCH_DEFAULT);
  }
  ~Owned() { interface.destroyEvent(event, device.index()); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  const c10::Device device;
  const c10::impl::VirtualGuardImpl interface;
  void* event = nullptr;
};

StreamEvent StreamEvent::after(const c10::Stream& stream) {
  StreamEvent event;
  event.owned_ = std::make_shared<const Owned>(stream);
  return event;
}

void StreamEvent::block(const c10::Stream& stream) const {
  if (owned_) owned_->interface.block(owned_->event, stream);
}

bool StreamEvent::is_reached() const {
  return !owned_ || owned_->interface.queryEvent(owned_->event);
}

void StreamEvent::wait_on_host(Deadline deadline, const std::string& what) const {
  while (!is_reached()) {
    if (deadline.expired()) {
      fail(ErrorCode::kTimeout, {.deadline = deadline.timeout()},
           "{}: {} has not finished its work within {} ms; a kernel hangs, or its stream waits for "
           "a stream that hangs",
           what, owned_->device.str(),
           deadline.timeout().value_or(std::chrono::milliseconds()).count());
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

DeviceEvent StreamEvent::shared() const {
  if (!owned_) return nullptr;
  return {std::shared_ptr<const void>(owned_), owned_->event};
}

namespace {

class StreamOrder : public DeviceOrder {
 public:
  explicit StreamOrder(c10::Device device)
      : device_(device), ready_(StreamEvent::after_current(device)), event_(ready_.shared()) {}

  void* ready() const override { return event_.get(); }
  void wait_for(void* event) const override {
    c10::impl::VirtualGuardImpl(device_.type()).block(event, current_stream_of(device_));
  }

 private:
  const c10::Device device_;
  const StreamEvent ready_;
  const DeviceEvent event_;
};

}  // namespace

void keep_until(const StreamEvent& event, std::shared_ptr<void> object) {
  using Kept = std::vector<std::pair<StreamEvent, std::shared_ptr<void>>>;
  static std::mutex mutex;  // guards `kept`
  static auto* const kept = new Kept;
  Kept dropped;  // destroyed after the lock is released: the objects' destructors may run any code
  const std::lock_guard lock(mutex);
  const auto first = std::stable_partition(kept->begin(), kept->end(),
                                           [](const auto& one) { return !one.first.is_reached(); });
  std::move(first, kept->end(), std::back_inserter(dropped));
  kept->erase(first, kept->end());
  kept->emplace_back(event, std::move(object));
}

std::shared_ptr<const DeviceOrder> order_in_current_stream(c10::Device device) {
  return std::make_shared<StreamOrder>(with_index(device));
}

bool StreamJoin::add(const c10::Stream& stream) {
  if (std::ranges::find(streams_, stream) != streams_.end()) return false;
  streams_.push_back(stream);
  return true;
}

void StreamJoin::wait_for_all() const {
  const c10::Stream own = current_stream_of(device_);
  for (const c10::Stream& stream : streams_) {
    if (stream != own) StreamEvent::after(stream).block(own);
  }
}

}  // namespace paceline
