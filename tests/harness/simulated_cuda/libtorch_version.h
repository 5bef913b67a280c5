#pragma once

// All code of the simulated device that depends on the version of LibTorch: the interface of the
// hooks and of the device guard. The classes in this file translate this interface to one form.

#include <cstdint>

#include <ATen/core/Generator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/version.h>

namespace paceline::simulated {

#if TORCH_VERSION_MAJOR >= 2
using HookIndex = c10::DeviceIndex;
using PinnedPointer = const void*;
#else
using HookIndex = std::int64_t;
using PinnedPointer = void*;
#endif

// The functions of LibTorch's CUDA hooks whose names or types differ.
class PortableHooks : public at::CUDAHooksInterface {
 public:
  virtual const at::Generator& default_generator(int device) const = 0;

#if TORCH_VERSION_MAJOR >= 2
  void init() const override {}
  virtual bool isBuilt() const { return true; }      // overrides from 2.7 on
  virtual bool isAvailable() const { return true; }  // overrides from 2.7 on
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(getNumGPUs());
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
#else
  void initCUDA() const override {}
  const at::Generator& getDefaultCUDAGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
#endif
};

// The functions of a device guard that newer versions have and 1.13 does not.
class PortableGuard : public c10::impl::DeviceGuardImplInterface {
 public:
  virtual void synchronize_event(void* event) const = 0;
  virtual void synchronize_device(c10::DeviceIndex device) const = 0;

#if TORCH_VERSION_MAJOR >= 2
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return getStreamFromGlobalPool(device, false);
  }
  void synchronizeEvent(void* event) const override { synchronize_event(event); }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    synchronize_device(device);
  }
#endif
};

}  // namespace paceline::simulated
