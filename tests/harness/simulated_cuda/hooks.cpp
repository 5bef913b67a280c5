// The hooks through which LibTorch behaves as if it had been built with CUDA, as far as tests need
// it.

#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include "tests/harness/simulated_cuda/allocators.h"
#include "tests/harness/simulated_cuda/guard.h"
#include "tests/harness/simulated_cuda/libtorch_version.h"
#include "tests/harness/simulated_cuda/memory.h"

namespace at {

// LibTorch looks up a class of this name in its registry.
struct CUDAHooks final : paceline::simulated::PortableHooks {
  explicit CUDAHooks(CUDAHooksArgs /*args*/) {}
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  int getNumGPUs() const override { return paceline::simulated::num_devices(); }
  bool hasPrimaryContext(paceline::simulated::HookIndex device) const override {
    return paceline::simulated::num_touches(static_cast<int>(device)) > 0;
  }
  paceline::simulated::HookIndex current_device() const override {
    return static_cast<paceline::simulated::HookIndex>(paceline::simulated::current_device());
  }
  Device getDeviceFromPtr(void* data) const override {
    return {kCUDA, static_cast<DeviceIndex>(paceline::simulated::device_of(data))};
  }
  bool isPinnedPtr(paceline::simulated::PinnedPointer data) const override {
    return paceline::simulated::is_pinned(data);
  }
  Allocator* getPinnedMemoryAllocator() const override {
    return paceline::simulated::pinned_allocator();
  }
  Allocator* getCUDADeviceAllocator() const override {
    return paceline::simulated::device_allocator();
  }
  void deviceSynchronize(paceline::simulated::HookIndex device) const override {
    paceline::simulated::count_synchronisation();
    paceline::simulated::Stream::for_each(static_cast<int>(device),
                                          [](auto& stream) { stream.drain(); });
  }
  const Generator& default_generator(int device) const override {
    static auto* const generators = [] {
      auto* const made = new std::vector<Generator>;
      for (int i = 0; i < paceline::simulated::num_devices(); ++i)
        made->push_back(at::detail::createCPUGenerator());
      return made;
    }();
    return generators->at(static_cast<std::size_t>(device < 0 ? current_device() : device));
  }
};

REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace at
